"""Small problems with known answers, shared by the tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import wima
from wima import Batch, FederatedData, Task

# The scalar problem of the golden table: g_i(w) = a_i (w - b_i), whatever the batch.
A, B, SIZES = (1.0, 2.0, 0.5, 4.0), (1.0, -1.0, 3.0, 0.5), (10, 20, 30, 40)
COHORTS = ([0, 1], [2, 3], [0, 2], [1, 3], [0, 1], [2, 3])


def quadratics(
    a: np.ndarray, b: np.ndarray, sizes: Sequence[int], start: np.ndarray | None = None
) -> Task:
    """Client i has the loss 1/2 sum_j a_ij (w_j - b_ij)^2, in float64."""
    rows = np.repeat(np.concatenate([a, b], axis=1), sizes, axis=0)
    clients = np.repeat(np.arange(len(sizes)), sizes)
    data = FederatedData.from_arrays(rows, np.zeros(len(rows)), clients)
    d = a.shape[1]
    w0 = torch.zeros(d, dtype=torch.float64) if start is None else torch.from_numpy(start)

    def gradient(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        return batch.x[0, :d] * (w - batch.x[0, d:])

    return Task(data, lambda seed: w0.clone(), gradient, lambda w: {"norm": float(w.norm())})


def scalar_task() -> Task:
    """The problem of the golden table."""
    return quadratics(np.array(A)[:, None], np.array(B)[:, None], SIZES)


def trajectory(
    task: Task, algorithm: wima.Algorithm | None, **settings: object
) -> list[torch.Tensor]:
    """The global models w^1, w^2, ... of a run."""
    simulation = wima.simulate(task, algorithm, **{"eval_every": 0, **settings})
    return [simulation.w.clone() for _ in simulation]
