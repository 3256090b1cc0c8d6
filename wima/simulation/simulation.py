"""The round loop: sample, train, step, average, evaluate, record.

for record in simulate(task, FedAvg(), averagers=[WIMA(50)], rounds=200, ...):
    print(record.t, record.metrics)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from inspect import Signature, signature
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from wima.algorithms.base import Algorithm
from wima.algorithms.fedavg import FedAvg
from wima.algorithms.server_opt import SGD, Momentum, ServerOpt
from wima.averaging import Averager, Watch, named
from wima.core.errors import Diverged, RunError, check, unknown
from wima.core.vector import Vector, one_thread
from wima.data.batches import LocalSGD
from wima.engine import MakeEngine, make_engine
from wima.engine.base import RoundState, Setup, first_state, located, untouched
from wima.engine.faults import Faults
from wima.engine.options import RunOptions
from wima.simulation.arguments import check_parts
from wima.simulation.cohorts import Cohorts, check_cohort_size, checked_cohort, uniform_cohorts
from wima.simulation.schedules import Constant, Schedule
from wima.storage.segments import Storage
from wima.task.evaluation import Metrics
from wima.task.task import Task, data_checksum

PATIENCE = 3  # rounds in a row without a usable update, which end the run


class Record(NamedTuple):
    """One round as it happened; its metrics are those of the models after t rounds."""

    t: int  # rounds done
    cohort: list[int]
    lr: float
    metrics: dict[str, Metrics]  # name of the model -> metric -> value; empty if not evaluated
    seconds: float
    dropped: tuple[int, ...] = ()  # clients of the cohort that never answered
    excluded: tuple[int, ...] = ()  # clients that sent what is not finite, see `Faults`
    windows: Mapping[str, int] = MappingProxyType({})  # models in averages whose window varies


class Simulation:
    """An iterator of records, with the models of the moment: `w`, and `vectors()` by name."""

    def __init__(
        self,
        setup: Setup,
        options: RunOptions,
        averagers: Mapping[str, Averager],
        schedule: Schedule,
        cohorts: Cohorts,
        storage: Storage,
        make: MakeEngine | None = None,
    ) -> None:
        self.setup, self.options, self.rounds, self.t = setup, options, options.rounds, 0
        self.between_rounds = True  # all state is that after t rounds
        self._closed, self._schedule, self._cohorts = False, schedule, cohorts
        self._drawn: dict[int, list[int]] = {}  # the newest cohort, by its round
        self._unusable = 0  # rounds in a row of which no update could be used
        self.store = storage.store
        self.state: RoundState = first_state(setup, store=self.store, budget=storage.client_bytes)
        self._largest_norm = options.diverged * max(1.0, _norm(self.state.w))
        layout = setup.task.layout
        ring = {"mapped": self.store if storage.mapped_window else None, "dtype": storage.dtype}
        self.watch = Watch(averagers, self.state.w, layout.mask if layout else None, **ring)
        models = len(self.watch.averagers)
        self._engine = make(setup) if make else make_engine(options, setup, self.state.w, models)

    @property
    def engine(self) -> str:
        """The engine that runs the rounds."""
        return self._engine.name

    @property
    def helps(self) -> bool:
        """Whether this process only works for the one that runs the rounds."""
        return self._engine.helps

    def facts(self) -> dict[str, str | int]:
        """What a record of the run should say of it besides its settings."""
        return {
            "engine": self.engine,
            "clients": self.setup.task.data.num_clients,
            "parameters": len(self.w),
            "data_checksum": self._data_checksum,
        }

    @cached_property
    def _data_checksum(self) -> str:
        return data_checksum(self.setup.task)

    @property
    def w(self) -> Vector:
        """The global model that clients train from next."""
        return self.state.w

    def vectors(self) -> dict[str, Vector]:
        """The models to evaluate and serve: "plain" and every average."""
        return self.watch.vectors()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if self.t == self.rounds or (not self._closed and self._engine.serve()):
            self.close()
            raise StopIteration
        if self._closed:
            raise RunError(f"The simulation was closed after {self.t} of {self.rounds} rounds.")
        try:
            with one_thread():
                return self._round()
        except BaseException:
            self.state.memory.discard()
            self.close()
            raise

    def _round(self) -> Record:
        begin, t, lr = time.perf_counter(), self.t, self._lr(self.t)
        cohort = self._cohort(t)
        answer = self.setup.faults.survivors(self.setup.seed, t, cohort)
        state = self._state_after(t, answer, lr)
        self.between_rounds = False
        state.memory.commit()
        self.state = state
        self.watch.update(self._served(), state.fresh)
        metrics = {}
        if self.options.evaluates(t + 1):
            self._begin(t + 1)
            metrics = self._engine.evaluate(self.vectors())
        self.t, self.between_rounds = t + 1, True
        dropped = tuple(client for client in cohort if client not in answer)
        seconds = time.perf_counter() - begin
        windows = self.watch.used()
        return Record(self.t, cohort, lr, metrics, seconds, dropped, self.state.excluded, windows)

    def _lr(self, t: int) -> float:
        return self.options.lr * self._schedule.factor(t, self.rounds)

    def _state_after(self, t: int, cohort: list[int], lr: float) -> RoundState:
        """Run the round; a round without clients keeps the model."""
        if not cohort:
            return self.state._replace(excluded=(), fresh=None)
        state = self._engine.round(self.state, t, cohort, lr)
        self._unusable = self._unusable + 1 if len(state.excluded) == len(cohort) else 0
        if self._unusable == PATIENCE:
            raise RunError(f"No client sent a usable update in {PATIENCE} rounds in a row.")
        norm = _norm(state.w)
        if not norm <= self._largest_norm:
            raise Diverged(
                f"round {t + 1}: the norm of the model is {norm:.3g}, more than "
                f"{self._largest_norm:.3g}; a smaller lr may help."
            )
        return state

    def _begin(self, t: int) -> None:
        """Let workers that have nothing left to evaluate start on the next round."""
        cohort: list[int] = []
        if t < self.rounds and self._engine.runs_ahead:
            with suppress(Exception):  # of a user's cohorts: the round itself will report it
                cohort = self.setup.faults.survivors(self.setup.seed, t, self._cohort(t))
        if cohort:
            self._engine.begin(self.state, t, cohort, self._lr(t))

    def _cohort(self, t: int) -> list[int]:
        """The clients of round t, drawn once: a user's function may not repeat itself."""
        if t not in self._drawn:
            clients, most = self.setup.task.data.num_clients, self.options.clients_per_round
            drawn = self._cohorts(self.setup.seed, t)
            self._drawn = {t: checked_cohort(drawn, t, clients, most)}
        return self._drawn[t]

    def _served(self) -> Vector:
        """The model that is evaluated and averaged; for most algorithms w itself."""
        w, trained = self.state.w, self.setup.trained
        with located(self.t, "served"), untouched(w, self.state.server):
            served = self.setup.algorithm.served(w[:trained], self.state.server)
            expected = w[:trained].shape
            check(served.shape == expected, f"expected shape {expected}, got {served.shape}.")
        if served.data_ptr() == w.data_ptr():
            return w
        joined = w.clone()
        joined[:trained] = served
        return joined

    def close(self) -> None:
        """End the engine's workers; what was computed stays readable."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _norm(w: Vector) -> float:
    """The norm of a model; 0 where tensors have no numbers."""
    return 0.0 if w.is_meta else float(w.norm())


def simulate(
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    server_opt: ServerOpt | None = None,
    averagers: Averager | Sequence[Averager] | Mapping[str, Averager] = (),
    schedule: Schedule | None = None,
    cohorts: Cohorts | None = None,
    faults: Faults | None = None,
    storage: Storage | None = None,
    make: MakeEngine | None = None,
    **options: Any,
) -> Simulation:
    """Set a run up and return the iterator that runs it.

    options: rounds, clients_per_round, lr and others, see `RunOptions`; batch_size, epochs and
    others of local SGD, see `LocalSGD`.
    schedule: how lr changes over the rounds; see `wima.simulation.schedules`.
    cohorts: (seed, t) -> the clients of round t, instead of uniform sampling.
    faults: clients that drop out, straggle or return nonsense; see `Faults`.
    make: a function that makes the engine.
    With engine "distributed", all ranks call this; the iterators of ranks 1, 2, ... solve what rank
    0 sends them and give no records.
    """
    run, sgd = sorted_out(options)
    check_parts(task, algorithm, server_opt, averagers, schedule)
    check_cohort_size(run.clients_per_round, task.data.num_clients)
    algorithm, server_opt = algorithm or FedAvg(), server_opt or SGD()
    check_server_rule(algorithm, server_opt, run.stack_server)
    schedule = schedule or Constant()
    schedule.factor(0, run.rounds)  # raises now if the schedule does not fit the run
    watched = {name: a.for_run(run.rounds) for name, a in named(averagers).items()}
    judged = any(averager.judges for averager in watched.values())
    setup = (task, algorithm, server_opt, sgd, run.weighting, run.seed, faults or Faults(), judged)
    return Simulation(
        Setup(*setup),
        run,
        watched,
        schedule,
        cohorts or uniform_cohorts(task.data.num_clients, run.clients_per_round),
        storage or Storage(),
        make,
    )


def sorted_out(options: dict[str, Any]) -> tuple[RunOptions, LocalSGD]:
    """The options of the run, and those of local SGD."""
    known = {kind: [field.name for field in fields(kind)] for kind in (RunOptions, LocalSGD)}
    for name in options:
        if not any(name in names for names in known.values()):
            own = list(signature(simulate).parameters)
            raise unknown("option", name, own)
    given = {kind: {n: options[n] for n in names if n in options} for kind, names in known.items()}
    return RunOptions(**given[RunOptions]), LocalSGD(**given[LocalSGD])


def shown(function: Callable[..., Any], *kinds: Any) -> Signature:
    """The function's signature with these options in place of its last parameter, for `help`."""
    *own, _ = signature(function).parameters.values()
    names = [p.name for p in own]
    more = [p for kind in kinds for p in signature(kind).parameters.values()]
    return Signature([*own, *(p for p in more if p.name not in names)])


simulate.__signature__ = shown(simulate, RunOptions, LocalSGD)  # type: ignore[attr-defined]


def check_server_rule(algorithm: Algorithm, server_opt: ServerOpt, stack: bool) -> None:
    """FedDyn, AdaBest and FedACG step by themselves: another optimizer on top is a mistake."""
    name = type(algorithm).__name__
    check(
        stack or not algorithm.own_server_rule or server_opt in (SGD(), Momentum(momentum=0)),
        f"{name} has a server rule of its own, so server must be SGD with lr 1 and no momentum, "
        f"got {server_opt}; set stack_server to apply it to {name}'s pseudo-gradient all the same.",
    )
