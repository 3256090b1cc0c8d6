"""The round loop: sample, train, step, average, evaluate, record.

for record in simulate(task, FedAvg(), averagers=[WIMA(50)], rounds=200, ...):
    print(record.t, record.metrics)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from wima.algorithms.base import Algorithm
from wima.algorithms.fedavg import FedAvg
from wima.algorithms.server_opt import SGD, Momentum, ServerOpt
from wima.averaging import Averager, Watch, named
from wima.core.checks import check_count, check_rate, is_count
from wima.core.errors import Diverged, RunError, UsageError, check
from wima.core.vector import Vector
from wima.data.batches import LocalSGD
from wima.engine import MakeEngine, make_engine
from wima.engine.base import RoundState, Setup, Weighting, first_state, naming, one_thread
from wima.engine.faults import Faults
from wima.engine.guard import untouched
from wima.simulation.cohorts import Cohorts, check_cohort_size, checked_cohort, uniform_cohorts
from wima.simulation.schedules import Constant, Schedule
from wima.storage.segments import Storage
from wima.task.evaluation import Metrics
from wima.task.task import Task


class Record(NamedTuple):
    """One round as it happened; its metrics are those of the models after t rounds."""

    t: int  # rounds done
    cohort: list[int]
    lr: float
    metrics: dict[str, Metrics]  # name of the model -> metric -> value; empty if not evaluated
    seconds: float
    dropped: tuple[int, ...] = ()  # clients of the cohort that never answered
    excluded: tuple[int, ...] = ()  # clients whose models were not finite, see `Faults`


class Result(NamedTuple):
    """A finished run: all records, and the final models by name."""

    records: list[Record]
    vectors: dict[str, Vector]


class Simulation:
    """An iterator of records, with the models of the moment: `w`, and `vectors()` by name."""

    def __init__(
        self,
        setup: Setup,
        averagers: Mapping[str, Averager],
        *,
        rounds: int,
        clients_per_round: int,
        lr: Callable[[int], float],
        cohorts: Cohorts,
        evaluate_at: Callable[[int], bool],
        engine: str | MakeEngine,
        workers: int | None,
        storage: Storage,
        diverged: float,
    ) -> None:
        self.setup, self.rounds, self.t = setup, rounds, 0
        self.whole = True  # whether all state is that after t rounds, not amid one
        self._clients_per_round, self._closed = clients_per_round, False
        self._lr, self._cohorts, self._evaluate_at = lr, cohorts, evaluate_at
        self.store = store = storage.store
        dtype = storage.dtype
        self.state: RoundState = first_state(
            setup, store=store, budget=storage.client_bytes, dtype=dtype
        )
        self._largest_norm = diverged * max(1.0, _norm(self.state.w))
        layout = setup.task.layout
        ring = {"mapped": store if storage.mapped_window else None, "dtype": dtype}
        self.watch = Watch(averagers, self.state.w, layout.mask if layout else None, **ring)
        models = len(self.watch.averagers)
        self._engine = make_engine(
            engine, setup, self.state.w, clients_per_round, workers, models, rounds
        )

    @property
    def engine(self) -> str:
        """The engine that plays the rounds."""
        return self._engine.name

    def facts(self) -> dict[str, str | int]:
        """What a record of the run should say of it besides its settings."""
        clients = self.setup.task.data.num_clients
        return {"engine": self.engine, "clients": clients, "parameters": len(self.w)}

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
        if self.t == self.rounds:
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
        self.whole = False
        state.memory.commit()
        self.state = state
        self.watch.update(self._served())
        metrics = {}
        if self._evaluate_at(t + 1):
            self._begin(t + 1)
            metrics = self._engine.evaluate(self.vectors())
        self.t, self.whole = t + 1, True
        dropped = tuple(client for client in cohort if client not in answer)
        seconds = time.perf_counter() - begin
        return Record(self.t, cohort, lr, metrics, seconds, dropped, self.state.excluded)

    def _state_after(self, t: int, cohort: list[int], lr: float) -> RoundState:
        """Play the round; a round without clients keeps the model."""
        if not cohort:
            return self.state._replace(excluded=())
        state = self._engine.round(self.state, t, cohort, lr)
        norm = _norm(state.w)
        if not norm <= self._largest_norm:
            raise Diverged(
                f"round {t + 1}: the norm of the model is {norm:.3g}, more than "
                f"{self._largest_norm:.3g}; a smaller lr may help."
            )
        return state

    def _begin(self, t: int) -> None:
        """Let workers that find nothing more to evaluate start on the next round."""
        cohort: list[int] = []
        if t < self.rounds and self._engine.runs_ahead:
            with suppress(Exception):  # of a user's cohorts: the round itself will say so
                cohort = self.setup.faults.survivors(self.setup.seed, t, self._cohort(t))
        if cohort:
            self._engine.begin(self.state, t, cohort, self._lr(t))

    def _cohort(self, t: int) -> list[int]:
        drawn, clients = self._cohorts(self.setup.seed, t), self.setup.task.data.num_clients
        return checked_cohort(drawn, t, clients, self._clients_per_round)

    def _served(self) -> Vector:
        """The model that is evaluated and averaged; for most algorithms w itself."""
        w, trained = self.state.w, self.setup.trained
        with naming(self.t, "served"), untouched(w, self.state.server):
            served = self.setup.algorithm.served(w[:trained], self.state.server)
            expected = w[:trained].shape
            check(served.shape == expected, f"expected shape {expected}, got {served.shape}.")
        if served.data_ptr() == w.data_ptr():
            return w
        whole = w.clone()
        whole[:trained] = served
        return whole

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
    rounds: int,
    clients_per_round: int,
    lr: float,
    schedule: Schedule | None = None,
    server_opt: ServerOpt | None = None,
    averagers: Sequence[Averager] | Mapping[str, Averager] = (),
    stack_server: bool = False,
    weighting: Weighting = "examples",
    seed: int = 0,
    cohorts: Cohorts | None = None,
    eval_every: int = 1,
    eval_last: int = 100,
    engine: str | MakeEngine = "auto",
    workers: int | None = None,
    faults: Faults | None = None,
    diverged: float = 1e4,
    storage: Storage | None = None,
    **sgd: Any,
) -> Simulation:
    """Set a run up and return the iterator that plays it.

    sgd: batch_size, epochs, steps, last_batch, weight_decay, momentum, clip; see `LocalSGD`.
    schedule: how lr changes over the rounds; see `wima.simulation.schedules`.
    stack_server: let a server optimizer follow an algorithm that has a server rule of its own.
    eval_every: evaluate every so many rounds, and in each of the `eval_last` last ones; 0: never.
    engine: its name, or a function that makes one.
    cohorts: (seed, t) -> the clients of round t, instead of uniform sampling.
    faults: clients that drop out, straggle or return nonsense; see `Faults`.
    diverged: the run ends when the model's norm exceeds so many times that of the initial model
    (or 1, if that is larger), or is not finite.
    """
    check_count("rounds", rounds)
    check_rate("lr", lr)
    check_rate("diverged", diverged)
    check_count("eval_every", eval_every, least=0)
    check_count("eval_last", eval_last, least=0)
    check(is_count(seed, 0) and seed < 2**32, f"seed must be in 0 ... 2**32 - 1, got {seed!r}.")
    check(
        weighting in ("examples", "uniform"),
        f"weighting must be 'examples' or 'uniform', got {weighting!r}.",
    )
    if workers is not None:
        check_count("workers", workers)
    check_cohort_size(clients_per_round, task.data.num_clients)
    algorithm, server_opt = algorithm or FedAvg(), server_opt or SGD()
    check_server_rule(algorithm, server_opt, stack_server)
    factor = (schedule or Constant()).factor
    factor(0, rounds)  # tells now if the schedule does not fit the run
    return Simulation(
        Setup(task, algorithm, server_opt, _local_sgd(sgd), weighting, seed, faults or Faults()),
        {name: a.for_run(rounds) for name, a in named(averagers).items()},
        rounds=rounds,
        clients_per_round=clients_per_round,
        lr=lambda t: lr * factor(t, rounds),
        cohorts=cohorts or uniform_cohorts(task.data.num_clients, clients_per_round),
        evaluate_at=lambda t: (
            bool(eval_every) and (t % eval_every == 0 or t > rounds - max(1, eval_last))
        ),
        engine=engine,
        workers=workers,
        storage=storage or Storage(),
        diverged=diverged,
    )


def run(task: Task, algorithm: Algorithm | None = None, **settings: Any) -> Result:
    """`simulate` to the end: all records and the final models."""
    with simulate(task, algorithm, **settings) as simulation:
        records = list(simulation)
        return Result(records, simulation.vectors())


def check_server_rule(algorithm: Algorithm, server_opt: ServerOpt, stack: bool) -> None:
    """FedDyn, AdaBest and FedACG step by themselves: another optimizer on top is a mistake."""
    name = type(algorithm).__name__
    check(
        stack or not algorithm.own_server_rule or server_opt in (SGD(), Momentum(momentum=0)),
        f"{name} has a server rule of its own, so server must be SGD with lr 1 and no momentum, "
        f"got {server_opt}; set stack_server to apply it to {name}'s pseudo-gradient all the same.",
    )


def _local_sgd(options: dict[str, Any]) -> LocalSGD:
    try:
        return LocalSGD(**options)
    except TypeError:
        known = ", ".join(LocalSGD.__dataclass_fields__)
        raise UsageError(
            f"Unknown setting among {', '.join(options)}; those of local SGD are {known}."
        ) from None
