"""Engines play rounds: `reference` plainly, `serial` in this process, `processes` in several."""

from __future__ import annotations

import os

from wima.engine.base import Engine, Setup
from wima.engine.local import Solver
from wima.engine.processes import Processes
from wima.engine.reference import Reference
from wima.engine.rounds import Pooled, Serial
from wima.errors import UsageError, unknown
from wima.vector import Vector

NAMES = ("auto", "reference", "serial", "processes", "batched")
SMALL = 100_000  # parameters; below, messages to workers cost more than a second core gives


def make_engine(
    name: str,
    setup: Setup,
    w: Vector,
    clients_per_round: int,
    workers: int | None = None,
    models: int = 1,
) -> Engine:
    """The engine of that name; `auto` takes processes for large models on several cores."""
    if name == "auto":
        return _auto(setup, w, clients_per_round, workers, models)
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
    setup: Setup, w: Vector, clients_per_round: int, workers: int | None, models: int
) -> Engine:
    large = len(w) >= SMALL and min(cores(), clients_per_round) > 1
    if (large or workers) and workers != 1:
        try:
            return make_engine("processes", setup, w, clients_per_round, workers, models)
        except UsageError:
            if workers:
                raise
    return make_engine("serial", setup, w, clients_per_round)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
