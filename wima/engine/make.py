"""The engine that the options of a run name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from wima.core.errors import UsageError, unknown
from wima.core.machine import cores
from wima.core.vector import Vector
from wima.engine import NAMES
from wima.engine.base import Engine, Setup
from wima.engine.choice import choose
from wima.engine.local import Solver
from wima.engine.options import RunOptions
from wima.engine.processes import Processes
from wima.engine.reference import Reference
from wima.engine.rounds import Pooled, Serial

MakeEngine: TypeAlias = Callable[[Setup], Engine]


def make_engine(options: RunOptions, setup: Setup, w: Vector, models: int = 1) -> Engine:
    """The engine that the options name.  models: how many are evaluated at a time."""
    workers, cohort = options.workers, options.clients_per_round

    def make(name: str, setup: Setup) -> Engine:
        if name == "reference":
            return Reference(setup)
        if name == "serial":
            return Pooled(name, setup, Serial(Solver(setup.task, setup.sgd, setup.seed)))
        if name == "processes":
            count = workers or min(cores(), cohort)
            return Pooled(name, setup, Processes(setup, w, count, models))
        if name == "batched":
            from wima.engine.batched import Batched  # imported here because workers do not need it

            return Pooled(name, setup, Batched(setup, w))
        if name == "distributed":
            from wima.engine.distributed import distributed  # imported only if needed

            return distributed(setup, w, options.collective)
        raise unknown("engine", name, NAMES)

    if options.engine != "auto":
        return make(options.engine, setup)
    if w.device.type != "cpu":  # on a GPU, `batched` if possible
        try:
            return make("batched", setup)
        except UsageError:
            return make("serial", setup)
    if workers and workers > 1:  # explicitly requested
        return make("processes", setup)
    several = workers is None and min(cores(), cohort) > 1
    chosen = choose(make, setup, cohort, options.rounds, several)
    engine = make(chosen.name, setup)
    engine.why = chosen.why
    return engine
