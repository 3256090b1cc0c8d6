"""Shared by all engines: the setup of a run, its state between rounds, means, error locations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm, State
from wima.algorithms.server_opt import OptState, ServerOpt
from wima.core.errors import RunError, UsageError
from wima.core.vector import Vector, vectors
from wima.data.batches import LocalSGD
from wima.simulation.clients import ClientMemory
from wima.simulation.faults import Faults
from wima.simulation.options import Weighting
from wima.simulation.privacy import Gaussian, PrivateSum
from wima.simulation.task import Task


class Setup(NamedTuple):
    """Everything that stays the same during a run."""

    task: Task
    algorithm: Algorithm
    server_opt: ServerOpt
    sgd: LocalSGD
    weighting: Weighting
    seed: int
    faults: Faults = Faults()
    wants_client_gradient: bool = False  # for averages that judge windows by it
    privacy: Gaussian | None = None
    cohort: int = 1  # clients per round, on average

    @property
    def trained(self) -> int | None:
        """The length of the part of w that algorithms see; the rest is simply averaged."""
        return self.task.trained

    def weight(self, client: int) -> float:
        """The weight of a client's delta, before division by the cohort's sum."""
        return float(self.task.data.size(client)) if self.weighting == "examples" else 1.0

    def private_sum(self, state: RoundState) -> PrivateSum | None:
        """An empty sum for the round's updates; None without differential privacy."""
        if self.privacy is None or state.clip is None:
            return None
        return PrivateSum(self.privacy, state.clip, self.cohort, state.w[: self.trained])

    def usable(self, *sent: Any) -> bool:
        """Whether a client's update can be used: with `exclude`, only if all of it is finite."""
        return not self.faults.exclude or all(is_finite(vector) for vector in vectors(sent))


class RoundState(NamedTuple):
    """Everything that a round changes.  `memory` is changed in place, the rest is replaced."""

    w: Vector
    server: State
    opt: OptState
    memory: ClientMemory
    excluded: tuple[int, ...] = ()  # clients of the last round whose updates were not finite
    client_gradient: Vector | None = None  # mean of `client_gradient_of` in the last round
    clip: float | None = None  # of the next round, with differential privacy


def first_state(setup: Setup, **storage: Any) -> RoundState:
    """The state before round 0; storage: where clients' memory is kept, see `ClientMemory`."""
    w = setup.task.init(setup.seed)
    trained = w[: setup.trained]
    memory = ClientMemory(setup.algorithm.client_init, **storage)
    with located(0, "init"), untouched(w):
        server = setup.algorithm.init(trained)
    clip = setup.privacy.clip if setup.privacy else None
    return RoundState(
        w=w, server=server, opt=setup.server_opt.init(trained), memory=memory, clip=clip
    )


def is_finite(vector: Vector) -> bool:
    """Whether no entry is infinite or NaN."""
    return bool(torch.isfinite(vector).all())


class RunningMean:
    """A weighted mean: summed in order of arrival, divided once."""

    def __init__(self) -> None:
        self._total: Vector | None = None
        self._weight = 0.0

    def add(self, vector: Vector, weight: float = 1.0) -> None:
        if self._total is None:
            self._total = torch.zeros_like(vector)
        self._total.add_(vector, alpha=weight)
        self._weight += weight

    @property
    def value(self) -> Vector | None:
        """The mean; None if nothing was added."""
        return None if self._total is None else self._total / self._weight


@contextmanager
def located(t: int, hook: str, client: int | None = None) -> Iterator[None]:
    """Prefix errors with the round, client and hook in which they happened."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        where = f"round {t}" + ("" if client is None else f", client {client}") + f", {hook}"
        raise RunError(f"{where}: {type(error).__name__}: {error}") from error


@contextmanager
def untouched(*arguments: Any) -> Iterator[None]:
    """Raise if a tensor among the arguments is written to inside the block."""
    # torch has no read-only tensors; it counts in-place writes instead.
    before = [(tensor, tensor._version) for tensor in vectors(arguments)]
    yield
    for tensor, version in before:
        if tensor._version != version:
            raise UsageError(
                "the hook changed one of its arguments in place; hooks must return new vectors "
                "(write `c = c + d`, not `c += d`)."
            )
