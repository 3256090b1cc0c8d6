"""The server's half of a round: the means of the clients' updates, and the server step.

Its plain twin is in `reference.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from wima.algorithms.base import Extra, State
from wima.core.vector import Vector
from wima.simulation.engines.base import RoundState, RunningMean, Setup, located


class Means(NamedTuple):
    """What the server learns in a round."""

    delta: Vector
    extra: Extra  # None if clients sent only deltas
    rest: Vector | None  # start - end of the rest of w; None if there is no rest
    clients: int
    fresh: Vector | None = None  # see `RoundState`; None if not requested
    clip: float | None = None  # see `RoundState`


class Updates:
    """The clients' updates, summed in the order of the cohort."""

    def __init__(self, setup: Setup, state: RoundState) -> None:
        self._private = setup.private_sum(state)
        self._uniform = setup.algorithm.extra_mean == "uniform"
        self._delta, self._extra, self._rest = RunningMean(), RunningMean(), RunningMean()
        self._fresh, self._clients = RunningMean() if setup.fresh else None, 0

    def add(
        self,
        weight: float,
        delta: Vector,
        extra: Vector | None,
        rest: Vector | None = None,
        fresh: Vector | None = None,
    ) -> None:
        """Add a client's update.  fresh: see `fresh_part`; its delta by default."""
        self._clients += 1
        if self._private is not None:  # then clients send only deltas
            self._private.add(delta)
            return
        self._delta.add(delta, weight)
        if self._fresh is not None:
            self._fresh.add(delta if fresh is None else fresh, weight)
        if extra is not None:
            self._extra.add(extra, 1.0 if self._uniform else weight)
        if rest is not None:
            self._rest.add(rest, weight)

    def means(self, setup: Setup, t: int) -> Means | None:
        """None if no client sent anything; privacy conceals this case."""
        if self._private is not None:
            mean, clip = self._private.release(setup.seed, t)
            return Means(mean, None, None, setup.cohort, mean if setup.fresh else None, clip)
        delta = self._delta.value
        if delta is None:
            return None
        fresh = self._fresh.value if self._fresh else None
        return Means(delta, self._extra.value, self._rest.value, self._clients, fresh)


def observed(
    setup: Setup, server: State, t: int, gradients: Iterable[tuple[float, Vector]]
) -> tuple[State, Vector | None]:
    """Phase A of MIME: the server's state after it observed the mean full gradient, and that mean.

    gradients: pairs (weight, gradient).
    """
    mean = RunningMean()
    for weight, vector in gradients:
        mean.add(vector, weight)
    gradient = mean.value
    if gradient is None:
        return server, None
    with located(t, "observe"):
        return setup.algorithm.observe(gradient, server), gradient


def step(setup: Setup, state: RoundState, server: State, means: Means, t: int) -> RoundState:
    """The state after the round: w - ServerOpt(pseudo-gradient); the rest of w as in FedAvg."""
    w = state.w[: setup.trained]
    rest = state.w[len(w) :]
    fraction = means.clients / setup.task.data.num_clients
    with located(t, "server_update"):
        gradient, server = setup.algorithm.server_update(
            w, means.delta, means.extra, server, fraction
        )
    change, opt = setup.server_opt.update(gradient, state.opt)
    rest = rest if means.rest is None else rest - means.rest
    w = torch.cat([w - change, rest])
    return RoundState(w, server, opt, state.memory, fresh=means.fresh, clip=means.clip)
