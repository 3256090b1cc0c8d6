"""A small task of clients that have different numbers of examples."""

from __future__ import annotations

import numpy as np
from torch import nn

import wima

SIZES = (9, 20, 14, 5, 11, 8)
EIGHT = (8, 12, 8, 12, 12, 8, 8, 12)
BAD = 3  # of the eight: one of its examples is not a number
OPTIONS = {"rounds": 6, "clients_per_round": 4, "lr": 0.1, "batch_size": 4, "seed": 2}


def task_of(poison: int | None = None, sizes: tuple[int, ...] = SIZES) -> wima.Task:
    """Unequal clients; the examples of client `poison` are infinite."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(sum(sizes), 6)).astype(np.float32)
    y = draw.integers(0, 3, sum(sizes))
    test = (x.copy(), y)
    data = wima.FederatedData(x, y, np.append(0, np.cumsum(sizes)))
    if poison is not None:
        data.client(poison)[0][:] = np.inf
    return wima.make_task(lambda: nn.Linear(6, 3), data, test)


def one_bad_example() -> wima.Task:
    """Eight clients; few mini-batches of client `BAD` hold the example that is not a number."""
    task = task_of(sizes=EIGHT)
    task.data.client(BAD)[0][7] = np.nan
    return task
