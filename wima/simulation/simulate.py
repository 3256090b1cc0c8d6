"""The round loop: sample, train, step, average, evaluate, record.

for record in simulate(task, FedAvg(), averagers=[WIMA(50)], rounds=200, ...):
    print(record.t, record.metrics)
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from threading import Lock
from typing import Any, Literal, NamedTuple, Never, Self, TypeVar

import torch

from wima import algorithms, averaging
from wima.algorithms.base import Algorithm
from wima.algorithms.fedavg import FedAvg
from wima.algorithms.server_opt import BY_NAME as SERVERS, SGD, Momentum, ServerOpt
from wima.algorithms.traffic import visit_bytes
from wima.averaging import Averager, Averages, named
from wima.core.errors import Diverged, RunError, UsageError, check, unknown
from wima.core.vector import Vector, finish_at_exit, one_thread, undisturbed
from wima.simulation.engines.auto import MakeEngine, make_engine
from wima.simulation.local import located, untouched
from wima.simulation.measures.base import Evaluation, Measure, Metrics
from wima.simulation.measures.finetune import BY_NAME as FINE_TUNING, FineTune
from wima.simulation.measures.job import Measures
from wima.simulation.options import (
    NOTHING,
    SCHEDULES,
    Cohorts,
    Constant,
    Faults,
    LocalSGD,
    RunOptions,
    Schedule,
    Weighting,
    make_cohorts,
)
from wima.simulation.privacy import BY_NAME as PRIVACY, Gaussian, PrivacyAccountant, accountant_of
from wima.simulation.round import RoundState, Setup, check_shape, first_state
from wima.simulation.task import Task, data_checksum
from wima.storage.segments import Storage


class Record(NamedTuple):
    """One round; its metrics are those of the models after t rounds."""

    t: int  # completed rounds
    cohort: list[int]
    lr: float
    metrics: Mapping[str, Metrics]  # name of the model -> metric -> value; empty if not evaluated
    seconds: float
    dropped: tuple[int, ...] = ()  # clients of the cohort that never answered
    excluded: tuple[int, ...] = ()  # clients whose updates were not finite, see `Faults`
    windows: Mapping[str, int] = NOTHING  # number of models in averages whose window varies
    privacy: Mapping[str, float] = NOTHING  # epsilon so far, and the next clip
    bytes: Mapping[str, int] = NOTHING  # sent to and by the clients of the round
    clients: Mapping[str, Any] = NOTHING  # model -> its metric over clients, see `summary`
    calibration: Mapping[str, Any] = NOTHING  # model -> bins of confidence, see `reliability`
    finetuned: Mapping[str, Any] = NOTHING  # model -> clients before and after fine-tuning


PATIENCE = 3  # consecutive rounds without a usable update that end the run


class Simulation(Iterator[Record]):
    """An iterator of records that holds the current models: `w`, and `vectors()` by name."""

    def __init__(
        self,
        setup: Setup,
        options: RunOptions,
        averagers: Mapping[str, Averager],
        measures: Measures,
        schedule: Schedule,
        cohorts: Cohorts,
        spent: PrivacyAccountant | None,
        storage: Storage,
        make: MakeEngine | None,
    ) -> None:
        self.setup, self.options, self.rounds, self.t = setup, options, options.rounds, 0
        self.between_rounds = True  # whether all state is that after t rounds
        self.accountant, self.measures = spent, measures
        self._closed, self._schedule, self._cohorts = False, schedule, cohorts
        self._drawn: dict[int, list[int]] = {}  # the newest cohort, by its round
        self.unusable = 0  # consecutive rounds without a usable update
        self.store = storage.store
        self.state: RoundState = first_state(setup, store=self.store, budget=storage.client_bytes)
        self._largest_norm = options.diverged * max(1.0, _norm(self.state.w))
        layout = setup.task.layout
        ring = {"mapped": self.store if storage.mapped_window else None, "dtype": storage.dtype}
        self.watch = Averages(averagers, self.state.w, layout.mask if layout else None, **ring)
        self._visit_bytes = visit_bytes(setup.algorithm, self.state.w, setup.task.trained)
        models = len(self.watch.averagers)
        self._engine = make(setup) if make else make_engine(options, setup, self.state.w, models)
        self._process, self._running = os.getpid(), Lock()
        finish_at_exit()
        self.engine = self._engine.name  # that runs the rounds
        self.why = self._engine.why  # the reason why `auto` chose it; empty without `auto`
        self.is_worker_rank = self._engine.is_worker_rank  # another process runs the rounds

    def facts(self) -> dict[str, Any]:
        """Facts about the run, besides its settings, to be recorded."""
        noise = self.setup.privacy.noise if self.setup.privacy else None
        return {
            "engine": self.engine,
            "clients": self.setup.task.data.num_clients,
            "parameters": len(self.w),
            "data_checksum": self._data_checksum,
            "directions": self.measures.better,
            **({"noise": noise} if noise is not None else {}),
        }

    def parts(self) -> dict[str, Any]:
        """The objects that determine the numbers, by name; "start": only the first model."""
        setup, task = self.setup, self.setup.task
        space, evaluation = task.workspace, task.evaluate
        made = evaluation if isinstance(evaluation, Evaluation) else None
        return {
            "start": space.factory if space else task.init,
            "model": space.module_at(space.w) if space else None,
            "layout": {n: list(shape) for n, shape in task.layout.shapes.items()}
            if task.layout
            else task.trained,
            "loss": space.loss if space else task.gradient,
            "transform": space.transform if space else None,
            "metrics": made.metrics.functions if made else evaluation,
            "measures": made.measures if made else None,
            "examples": (made.batch_size, made.owners, made.pooled) if made else None,
            "algorithm": setup.algorithm,
            "server": setup.server_opt,
            "schedule": self._schedule,
            "cohorts": self._cohorts,
            "faults": setup.faults,
            "privacy": setup.privacy,
            "finetune": self.measures.finetune,
            "averagers": self.watch.averagers,
            "past models": self.watch.ring.dtype,
        }

    @cached_property
    def _data_checksum(self) -> str:
        return data_checksum(self.setup.task)

    @property
    def w(self) -> Vector:
        """The global model from which clients train next."""
        return self.state.w

    def vectors(self) -> dict[str, Vector]:
        """The models to evaluate and serve: "plain" and every average."""
        return self.watch.vectors()

    def __next__(self) -> Record:
        if self._process != os.getpid() and self.engine in ("processes", "distributed"):
            raise UsageError(
                f"This simulation was made by process {self._process}, to which its workers "
                "belong: after a fork, make another one, or use engine 'serial'."
            )
        if not self._running.acquire(blocking=False):
            raise UsageError(
                f"Round {self.t + 1} of this simulation is already running, in a thread or a hook."
            )
        try:
            if self.t == self.rounds or (not self._closed and self._engine.serve()):
                raise StopIteration
            if self._closed:
                raise RunError(f"The simulation was closed after {self.t} of {self.rounds} rounds.")
            with one_thread():
                return self._round()
        except BaseException:
            self.state.memory.discard()
            self.close()
            raise
        finally:
            self._running.release()

    def _round(self) -> Record:
        begin, t, lr = time.perf_counter(), self.t, self._lr(self.t)
        # Some clients of the cohort may never answer; the others train, then the server steps.
        cohort = self._cohort(t)
        answering = self.setup.faults.survivors(self.setup.seed, t, cohort)
        state = self._state_after(t, answering, lr)
        # From here to the end of the round, a checkpoint would mix two rounds.
        self.between_rounds = False
        state.memory.commit()
        self.state = state
        # Averages watch: they get the new model and never change it.
        self.watch.update(self._served(), state.client_gradient)
        # While workers evaluate, those that have finished start on the next round.
        if self.measures.due(t + 1):
            self._begin(t + 1)
        entries = self.measures.after(t + 1, self._engine.evaluate, self.vectors)
        self.t, self.between_rounds = t + 1, True
        sent, spent = self._visit_bytes, {}
        if self.accountant is not None and state.clip is not None:
            spent = {"epsilon": self.accountant.epsilon(self.t), "clip": state.clip}
        return Record(
            t=self.t,
            cohort=cohort,
            lr=lr,
            metrics=entries.get("metrics", {}),
            seconds=time.perf_counter() - begin,
            dropped=tuple(client for client in cohort if client not in answering),
            excluded=state.excluded,
            windows=self.watch.used(),
            privacy=spent,
            bytes={"down": len(cohort) * sent.down, "up": len(answering) * sent.up}
            if sent
            else NOTHING,
            clients=entries.get("clients", NOTHING),
            calibration=entries.get("calibration", NOTHING),
            finetuned=entries.get("finetuned", NOTHING),
        )

    def _lr(self, t: int) -> float:
        return self.options.lr * self._schedule.factor(t, self.rounds)

    def _state_after(self, t: int, cohort: list[int], lr: float) -> RoundState:
        """Run the round; without clients, the model stays the same."""
        if not cohort and self.accountant is None:
            return self.state._replace(excluded=(), client_gradient=None)
        state = self._engine.round(self.state, t, cohort, lr)
        unusable = bool(cohort) and len(state.excluded) == len(cohort)
        count = self.unusable + 1 if unusable else 0
        if count == PATIENCE:  # not counted in the checkpoint: resuming repeats this round
            raise RunError(f"No client sent a usable update in {PATIENCE} consecutive rounds.")
        self.unusable = count
        norm = _norm(state.w)
        if not norm <= self._largest_norm:
            raise Diverged(
                f"round {t + 1}: the norm of the model is {norm:.3g}, more than "
                f"{self._largest_norm:.3g}; a smaller lr may help."
            )
        return state

    def _begin(self, t: int) -> None:
        """Let workers that have finished evaluating start on the next round."""
        cohort: list[int] = []
        if t < self.rounds and self._engine.runs_ahead:
            with suppress(Exception):  # from a user's cohorts: the round itself will report it
                cohort = self.setup.faults.survivors(self.setup.seed, t, self._cohort(t))
        if cohort:
            self._engine.begin(self.state, t, cohort, self._lr(t))

    def _cohort(self, t: int) -> list[int]:
        """The clients of round t, drawn once: a user's function may be random."""
        if t not in self._drawn:
            self._drawn = {t: list(self._cohorts(self.setup.seed, t))}
        return self._drawn[t]

    def _served(self) -> Vector:
        """The model to evaluate and average; for most algorithms w itself."""
        w, trained = self.state.w, self.setup.task.trained
        with located(self.t, "served"), untouched(w, self.state.server):
            served = self.setup.algorithm.served(w[:trained], self.state.server)
            check_shape(served, w[:trained])
        if served.data_ptr() == w.data_ptr():
            return w
        joined = w.clone()
        joined[:trained] = served
        return joined

    def close(self) -> None:
        """Stop the engine's workers; results remain readable."""
        self._closed = True
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _norm(w: Vector) -> float:
    """The norm of a model; 0 if tensors have no data."""
    return 0.0 if w.is_meta else float(w.norm())


def check_parts(arguments: Mapping[str, Any]) -> None:
    """Raise `UsageError` for objects of the wrong kind and say what to write; None: the default."""
    task = arguments["task"]
    check(
        isinstance(task, Task),
        f"task must be made by wima.make_task(model, data, test), got {task!r:.80}; to run a "
        "preset, use `wima run`.",
    )
    for name, (kind, registry) in KINDS.items():
        given = arguments.get(name)
        things: Iterable[Any] = [given]
        if name == "averagers" and isinstance(given, Iterable) and not isinstance(given, str):
            things = given.values() if isinstance(given, Mapping) else given
        for thing in things:
            if isinstance(kind, type):
                fits = isinstance(thing, kind)
            else:
                methods = [getattr(thing, method, None) for method in kind]
                fits = not isinstance(thing, type) and all(map(callable, methods))
            if thing is not None and not fits:
                raise UsageError(
                    f"{name} cannot be {thing!r:.80}; give {_instead(thing, registry)}."
                )
    measures = arguments.get("measures") or ()
    check(
        isinstance(measures, list | tuple) and all(isinstance(m, Measure) for m in measures),
        f"measures must be a list of wima.Measure objects, got {measures!r:.80}.",
    )


KINDS: dict[str, tuple[type[Any] | tuple[str, ...], Mapping[str, type[Any]]]] = {
    # argument: its class, or the methods that it must have; and what there is
    "algorithm": (Algorithm, algorithms.BY_NAME),
    "averagers": (Averager, averaging.BY_NAME),
    "server_opt": (("init", "update"), SERVERS),
    "schedule": (("factor",), SCHEDULES),
    "privacy": (Gaussian, PRIVACY),
    "finetune": (FineTune, FINE_TUNING),
}


def check_server_rule(algorithm: Algorithm, server_opt: ServerOpt, stack: bool) -> None:
    """FedDyn, AdaBest and FedACG have their own server step; adding an optimizer is a mistake."""
    name = type(algorithm).__name__
    check(
        stack or not algorithm.own_server_rule or server_opt in (SGD(), Momentum(momentum=0)),
        f"{name} has its own server rule, so server must be SGD with lr 1 and no momentum, "
        f"got {server_opt}; set stack_server to apply it to {name}'s pseudo-gradient anyway.",
    )


def _instead(given: Any, registry: Mapping[str, type[Any]]) -> str:
    """What to write instead of a class, a name with hyper-parameters, or anything else."""
    if isinstance(given, type) and given in registry.values():
        return f"wima.{given.__name__}()"
    name, *pairs = given.split(":") if isinstance(given, str) else [""]
    if name in registry:
        return f"wima.{registry[name].__name__}({', '.join(pairs)})"
    return f"an object such as wima.{next(iter(registry.values())).__name__}()"


@undisturbed()
def simulate(
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    rounds: int = 500,
    clients_per_round: int = 10,
    lr: float = 0.1,
    batch_size: int | Literal["full"] = 10,
    epochs: int = 1,
    steps: int | None = None,
    last_batch: Literal["fill", "short"] = "fill",
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    seed: int = 0,
    averagers: Averager | Sequence[Averager] | Mapping[str, Averager] = (),
    server_opt: ServerOpt | None = None,
    stack_server: bool = False,
    schedule: Schedule | None = None,
    weighting: Weighting = "examples",
    cohorts: Cohorts | str | None = None,
    faults: Faults | None = None,
    privacy: Gaussian | None = None,
    eval_every: int = 1,
    eval_last: int = 100,
    client_eval_every: int = 0,
    client_sample: int = 1000,
    calibration: bool = False,
    finetune: FineTune | None = None,
    measures: Sequence[Measure] = (),
    diverged: float = 1e4,
    engine: str = "auto",
    workers: int | None = None,
    storage: Storage | None = None,
    make: MakeEngine | None = None,
    **wrong: Never,
) -> Simulation:
    """Set up a run and return the iterator that runs it.

    rounds, clients_per_round, lr, eval_every and others: see `RunOptions`.
    batch_size, epochs, steps, last_batch, weight_decay, momentum, clip: see `LocalSGD`.
    averagers: averages of the global models, which never affect training.
    server_opt: how the server steps; SGD with lr 1 by default, as in FedAvg.
    schedule: how lr changes over the rounds; see `wima.simulation.options`.
    cohorts: "uniform" (the default), "poisson", or a function (seed, t) -> the clients of round t.
    faults: clients that drop out, straggle or return nonsense; see `Faults`.
    privacy: clip the clients' updates and add noise to their sum; see `Gaussian`.
    finetune: let each client fine-tune the final models; see `FineTune`.
    measures: what else to record about the models; see `Measure`.
    make: a function that makes the engine.

    With engine "distributed", all ranks call this function; the iterators of ranks 1, 2, ... solve
    the problems that rank 0 sends and yield no records.
    """
    arguments = {**locals(), **wrong}
    check_names(arguments, wrong)
    run, sgd = options_of(RunOptions, arguments), options_of(LocalSGD, arguments)
    check_parts(arguments)
    space, dtype = task.workspace, torch.get_default_dtype()
    check(
        space is None or space.default == dtype,
        f"torch's default dtype is {dtype}, but the task was made with {space and space.default}.",
    )
    cohorts = cohorts or "uniform"
    draw = make_cohorts(cohorts, task.data.num_clients, run.clients_per_round)
    algorithm, server_opt = algorithm or FedAvg(), server_opt or SGD()
    check_server_rule(algorithm, server_opt, run.stack_server)
    schedule, storage = schedule or Constant(), storage or Storage()
    schedule.factor(0, run.rounds)  # raises now if the schedule does not fit the run
    watched = {name: a.for_run(run.rounds) for name, a in named(averagers).items()}
    check(
        not (make and privacy),
        "privacy works only in the simulator. On Flower, wrap the strategy in one of Flower's "
        "strategies for differential privacy, and that in `averaged`.",
    )
    check(
        not (make and finetune),
        "finetune works only in the simulator: on Flower, training examples stay on their nodes.",
    )
    measured = Measures(task, run, measures, finetune)
    spent = accountant_of(privacy, task, algorithm, run, cohorts) if privacy else None
    setup = Setup(
        task=measured.task,
        algorithm=algorithm,
        server_opt=server_opt,
        sgd=sgd,
        weighting=run.weighting,
        seed=run.seed,
        faults=faults or Faults(),
        wants_client_gradient=any(a.rule().needs_gradient for a in watched.values()),
        privacy=spent.privacy if spent else None,
        cohort=run.clients_per_round,
    )
    return Simulation(setup, run, watched, measured, schedule, draw, spent, storage, make)


Kind = TypeVar("Kind", RunOptions, LocalSGD, Faults)


def options_of(kind: type[Kind], arguments: Mapping[str, Any]) -> Kind:
    """The arguments that are fields of the dataclass."""
    names = [field.name for field in fields(kind)]
    return kind(**{name: arguments[name] for name in names if name in arguments})


def check_names(arguments: Mapping[str, Any], wrong: Mapping[str, Any]) -> None:
    """Raise `UsageError` for the first unknown argument, with the nearest name."""
    for name in wrong:
        raise unknown("option", name, [n for n in arguments if n not in {*wrong, "wrong"}])
