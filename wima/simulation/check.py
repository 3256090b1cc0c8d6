"""Check that an algorithm, yours or ours, satisfies the contract that engines rely on."""

from dataclasses import fields
from typing import Any, get_args

import numpy as np
import torch

from wima.algorithms.base import Algorithm, ExtraMean, FullGradient
from wima.algorithms.server_opt import SGD
from wima.core.errors import Diverged, UsageError
from wima.core.randomness import rng
from wima.core.vector import Vector, vectors
from wima.data.federated import FederatedData
from wima.simulation.simulate import Simulation, simulate
from wima.simulation.task import Task
from wima.simulation.workspace import Batch

FLAGS = {  # class attributes that engines read
    "full_gradient": get_args(FullGradient),
    "extra_mean": get_args(ExtraMean),
    "path_gradient": (False, True),
    "own_server_rule": (False, True),
}
SIZES = (3, 5, 8, 4)  # examples of the toy problem's clients


def check_algorithm(algorithm: Algorithm) -> None:
    """Raise `UsageError` if the algorithm violates the contract that engines rely on.

    Class attributes have known values and are not hyper-parameters.
    On small least-squares problems with d = 1 and d = 7: hooks do not modify their arguments; state
    consists of tuples of vectors and numbers; models stay finite vectors of length d; the same seed
    gives the same bytes; the order of the clients does not matter beyond rounding.
    """
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"Expected an instance of Algorithm, got {algorithm!r}.")
    _check_flags(algorithm)
    for d in (1, 7):
        first = _run(algorithm, d, reverse=False)
        _check_state(algorithm, first.state.server, "server")
        for client, state in first.state.memory.visited().items():
            _check_state(algorithm, state, f"client {client}")
        again, reversed_ = (_run(algorithm, d, reverse=reverse) for reverse in (False, True))
        if not torch.equal(first.w, again.w):
            what = f"gives different results for one seed at d = {d}; is it random?"
            raise _broken(algorithm, what)
        if not torch.allclose(first.w, reversed_.w, rtol=1e-9, atol=1e-9):
            raise _broken(algorithm, "depends on the order of the clients in a cohort.")


def _run(algorithm: Algorithm, d: int, reverse: bool) -> Simulation:
    """Four rounds on the reference engine, which detects writes to arguments."""
    cohorts = [[0, 1, 2], [1, 3], [0, 2, 3], [0, 1]]
    simulation = simulate(
        _toy(d),
        algorithm,
        rounds=len(cohorts),
        clients_per_round=3,
        lr=0.05,
        batch_size=2,
        epochs=2,
        server_opt=SGD(),
        cohorts=lambda seed, t: cohorts[t][::-1] if reverse else cohorts[t],
        eval_every=0,
        engine="reference",
    )
    try:
        for _ in simulation:
            w = simulation.w
            if w.shape != (d,) or w.dtype != torch.float64:
                raise _broken(algorithm, f"returned the model {w!r} for finite data at d = {d}.")
    except Diverged as error:
        raise _broken(algorithm, f"diverged on finite data at d = {d}: {error}") from error
    return simulation


def _toy(d: int) -> Task:
    """Least squares on clients with different optima, in float64."""
    random = rng("check", d)
    x = random.normal(size=(sum(SIZES), d))
    clients = np.repeat(np.arange(len(SIZES)), SIZES)
    y = (x * random.normal(size=(len(SIZES), d))[clients]).sum(axis=1)
    data = FederatedData.from_arrays(x, y, clients)
    start = torch.from_numpy(random.normal(size=d))

    def gradient(w: Vector, batch: Batch) -> Vector:
        return batch.x.T @ (batch.x @ w - batch.y) / len(batch.x)

    return Task(data, lambda seed: start.clone(), gradient, evaluate=lambda w: {})


def _check_flags(algorithm: Algorithm) -> None:
    """A misspelt value would silently mean FedAvg's; an annotation would make it a field."""
    for name, known in FLAGS.items():
        value = getattr(algorithm, name)
        if type(value) is not type(known[0]) or value not in known:
            listed = ", ".join(map(repr, known))
            raise _broken(algorithm, f"has {name} = {value!r}; expected one of {listed}.")
        if name in {field.name for field in fields(algorithm)}:
            hint = f"write `{name} = {value!r}` instead"
            raise _broken(algorithm, f"annotates {name}, which makes it a hyper-parameter; {hint}.")


def _check_state(algorithm: Algorithm, state: Any, owner: str) -> None:
    """State must consist of tuples of vectors and numbers, so that it can be stored and sent."""
    if any(tensor.requires_grad for tensor in vectors(state)):
        raise _broken(algorithm, f"keeps vectors that require gradients in its {owner} state.")
    if isinstance(state, torch.Tensor | int | float):
        return
    if not isinstance(state, tuple):
        kind = type(state).__name__
        raise _broken(algorithm, f"keeps a {kind} in its {owner} state; use tuples of vectors.")
    for part in state:
        _check_state(algorithm, part, owner)


def _broken(algorithm: Algorithm, what: str) -> UsageError:
    return UsageError(f"{type(algorithm).__name__} {what}")
