"""Engines play rounds: `reference` plainly, `serial` in this process, `processes` in several,
`batched` with all clients at once; `auto` is the fastest of the last three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from wima.core.errors import UsageError, unknown
from wima.core.machine import cores
from wima.core.vector import Vector
from wima.engine.base import Engine, Setup
from wima.engine.choice import choose
from wima.engine.local import Solver
from wima.engine.processes import Processes
from wima.engine.reference import Reference
from wima.engine.rounds import Pooled, Serial

NAMES = ("auto", "reference", "serial", "processes", "batched")
MakeEngine: TypeAlias = Callable[[Setup], Engine]


def make_engine(
    name: str | MakeEngine,
    setup: Setup,
    w: Vector,
    clients_per_round: int,
    workers: int | None = None,
    models: int = 1,
    rounds: int = 1,
) -> Engine:
    """The engine of that name, ready to evaluate so many models; or what the function makes."""
    if callable(name):
        return name(setup)
    if name == "auto":
        return _auto(setup, w, clients_per_round, workers, models, rounds)
    if name == "reference":
        return Reference(setup)
    if name == "serial":
        return Pooled("serial", setup, Serial(Solver(setup.task, setup.sgd, setup.seed)))
    if name == "processes":
        count = workers or min(cores(), clients_per_round)
        return Pooled("processes", setup, Processes(setup, w, count, clients_per_round, models))
    if name == "batched":
        from wima.engine.batched import Batched  # here: workers do not need it

        return Pooled("batched", setup, Batched(setup, w))
    raise unknown("engine", name, NAMES)


def _auto(
    setup: Setup, w: Vector, clients_per_round: int, workers: int | None, models: int, rounds: int
) -> Engine:
    """On a GPU, `batched` if it can; who names a number of workers gets them; else the fastest."""

    def make(name: str, setup: Setup) -> Engine:
        return make_engine(name, setup, w, clients_per_round, workers, models)

    if w.device.type != "cpu":
        try:
            return make("batched", setup)
        except UsageError:
            return make("serial", setup)
    if workers and workers > 1:
        return make("processes", setup)
    several = workers is None and min(cores(), clients_per_round) > 1
    return make(choose(make, setup, clients_per_round, rounds, several), setup)
