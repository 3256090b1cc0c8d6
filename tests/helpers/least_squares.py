"""Least squares in float64 on six clients with optima of their own.

3 to 12 examples and 2 to 8 local steps each, mini-batches, weight decay and cohorts of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.toys import trajectory
from wima import Batch, FederatedData, Task

SIZES, DECAY = (3, 5, 8, 4, 12, 7), 0.01
M = len(SIZES)
SETTINGS = {
    "rounds": 6,
    "clients_per_round": 3,
    "lr": 0.05,
    "batch_size": 3,
    "epochs": 2,
    "weight_decay": DECAY,
    "eval_every": 0,
}
both_weightings = pytest.mark.parametrize("weighting", ["examples", "uniform"])


def least_squares(sizes: Sequence[int] = SIZES, *, linear: bool = False) -> Task:
    """Client i has the loss mean (x w - y)^2 / 2 with an optimum of its own; linear: mean x w."""
    random, d = np.random.default_rng(7), 4
    clients = np.repeat(np.arange(len(sizes)), sizes)
    x = random.normal(size=(len(clients), d)) * random.uniform(0.5, 1.5, len(sizes))[clients, None]
    y = (x * random.normal(size=(len(sizes), d))[clients]).sum(axis=1)
    data, w0 = FederatedData.from_arrays(x, y, clients), torch.from_numpy(random.normal(size=d))

    def gradient(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        errors = torch.ones_like(batch.y) if linear else batch.x @ w - batch.y
        return batch.x.T @ errors / len(batch.x)

    return Task(data, lambda seed: w0.clone(), gradient, lambda w: {"norm": float(w.norm())})


def models(algorithm: Any = None, task: Task | None = None, **changes: Any) -> torch.Tensor:
    """The models w^1, w^2, ... of a run, one per row."""
    return torch.stack(trajectory(task or least_squares(), algorithm, **{**SETTINGS, **changes}))


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).abs().max()) > 1e-4
