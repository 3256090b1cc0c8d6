"""What clients remember between visits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wima
from tests.helpers.toys import quadratics
from wima.storage.segments import Storage

CLIENTS = 6
REMEMBERING = [wima.Scaffold(), wima.FedDyn(alpha=0.1), wima.AdaBest(mu=0.2)]


def heterogeneous() -> wima.Task:
    """Quadratics in float32, each with an optimum and a curvature of its own."""
    draw = np.random.default_rng(3)
    a, b = draw.uniform(0.3, 1.0, (CLIENTS, 4)), draw.normal(size=(CLIENTS, 4))
    task = quadratics(a, b, [1] * CLIENTS)
    return task._replace(
        init=lambda seed: task.init(seed).float(),
        gradient=lambda w, batch: task.gradient(w.double(), batch).float(),
    )


def played(algorithm: wima.Algorithm, rounds: int, dtype: torch.dtype | None) -> wima.Simulation:
    simulation = wima.simulate(
        heterogeneous(),
        algorithm,
        averagers=[wima.WIMA(3)],
        storage=Storage(dtype=dtype),
        rounds=rounds,
        clients_per_round=2,
        lr=0.1,
        epochs=2,
        eval_every=0,
        engine="serial",
    )
    for _ in simulation:
        pass
    return simulation


@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_how_past_models_are_stored_does_not_steer_the_run(algorithm):
    plain, rounded = (played(algorithm, 50, dtype) for dtype in (None, torch.bfloat16))
    assert torch.equal(plain.w, rounded.w)
    assert not torch.equal(plain.vectors()["wima3"], rounded.vectors()["wima3"])


@pytest.mark.parametrize("algorithm", REMEMBERING[:2])
def test_the_server_keeps_the_mean_of_what_clients_remember(algorithm):
    """SCAFFOLD: c = mean of all c_i.  FedDyn: h = mean of all lam_i."""
    simulation = played(algorithm, 2000, torch.bfloat16)
    remembered = simulation.state.memory.visited()
    assert len(remembered) == CLIENTS
    kept = torch.stack([state[0] for state in remembered.values()])
    rounding = torch.finfo(torch.float32).eps * float(kept.abs().max())  # of one round
    drift = float((simulation.state.server[0] - kept.mean(dim=0)).abs().max())
    assert drift <= 10 * rounding
