"""The round loop: sample, train, step, average, evaluate, record.

for record in simulate(task, FedAvg(), averagers=[WIMA(50)], rounds=200, ...):
    print(record.t, record.metrics)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Self

from wima.algorithms.traffic import visit_bytes
from wima.averaging import Averager, Watch
from wima.core.errors import Diverged, RunError, check
from wima.core.vector import Vector, one_thread
from wima.engine.base import RoundState, Setup, first_state, located, untouched
from wima.engine.exams import FineTune
from wima.engine.make import MakeEngine, make_engine
from wima.engine.options import RunOptions
from wima.simulation.cohorts import Cohorts
from wima.simulation.examination import Examined, examine, finetuned
from wima.simulation.private import Ledger
from wima.simulation.record import Record as Record
from wima.simulation.schedules import Schedule
from wima.storage.segments import Storage
from wima.task.evaluation import Detail
from wima.task.task import data_checksum

PATIENCE = 3  # consecutive rounds without a usable update that end the run


class Simulation:
    """An iterator of records that holds the current models: `w`, and `vectors()` by name.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> with wima.simulate(task, rounds=3, clients_per_round=2, engine="serial") as simulation:
        ...     first = next(simulation)
        >>> first.cohort, simulation.t, simulation.w.shape
        ([0, 1], 1, torch.Size([10]))
    """

    def __init__(
        self,
        setup: Setup,
        options: RunOptions,
        averagers: Mapping[str, Averager],
        schedule: Schedule,
        cohorts: Cohorts,
        storage: Storage,
        make: MakeEngine | None = None,
        spent: Ledger | None = None,
        finetune: FineTune | None = None,
    ) -> None:
        self.setup, self.options, self.rounds, self.t = setup, options, options.rounds, 0
        self.between_rounds = True  # whether all state is that after t rounds
        self.ledger, self._finetune = spent, finetune
        self._closed, self._schedule, self._cohorts = False, schedule, cohorts
        self._drawn: dict[int, list[int]] = {}  # the newest cohort, by its round
        self._unusable = 0  # consecutive rounds without a usable update
        self.store = storage.store
        self.state: RoundState = first_state(setup, store=self.store, budget=storage.client_bytes)
        self._largest_norm = options.diverged * max(1.0, _norm(self.state.w))
        layout = setup.task.layout
        ring = {"mapped": self.store if storage.mapped_window else None, "dtype": storage.dtype}
        self.watch = Watch(averagers, self.state.w, layout.mask if layout else None, **ring)
        self._visit_bytes = visit_bytes(setup.algorithm, self.state.w, setup.trained)
        models = len(self.watch.averagers)
        self._engine = make(setup) if make else make_engine(options, setup, self.state.w, models)
        self.why = self._engine.why  # the reason why `auto` chose it; empty without `auto`

    @property
    def engine(self) -> str:
        """The engine that runs the rounds."""
        return self._engine.name

    @property
    def helps(self) -> bool:
        """Whether this process only works for another that runs the rounds."""
        return self._engine.helps

    def facts(self) -> dict[str, str | float]:
        """Facts about the run, besides its settings, to be recorded."""
        noise = self.setup.privacy.noise if self.setup.privacy else None
        return {
            "engine": self.engine,
            "clients": self.setup.task.data.num_clients,
            "parameters": len(self.w),
            "data_checksum": self._data_checksum,
            **({"noise": noise} if noise is not None else {}),
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
        found = self._examined(t + 1)
        self.t, self.between_rounds = t + 1, True
        dropped = tuple(client for client in cohort if client not in answer)
        seconds = time.perf_counter() - begin
        facts = (dropped, self.state.excluded, self.watch.used(), self._spent())
        sent = self._visit_bytes.of_round(len(cohort), len(answer)) if self._visit_bytes else {}
        return Record(self.t, cohort, lr, found.metrics, seconds, *facts, sent, *found[1:])

    def _examined(self, t: int) -> Examined:
        """The scores of the models after t rounds."""
        if self._finetune and t == self.rounds:
            about = (self._engine, self.setup.task, self.vectors())
            return self._scored(t)._replace(finetuned=finetuned(*about, self._finetune, t))
        return self._scored(t)

    def _scored(self, t: int) -> Examined:
        if not self.options.evaluates(t):
            return Examined({})
        self._begin(t)
        detail = Detail(self.options.evaluates_clients(t), self.options.calibration)
        return examine(self._engine, self.setup.task, self.vectors(), detail)

    def _spent(self) -> dict[str, float]:
        if self.ledger is None or self.state.clip is None:
            return {}
        return {"epsilon": self.ledger.epsilon(self.t), "clip": self.state.clip}

    def _lr(self, t: int) -> float:
        return self.options.lr * self._schedule.factor(t, self.rounds)

    def _state_after(self, t: int, cohort: list[int], lr: float) -> RoundState:
        """Run the round; without clients, the model stays the same."""
        if not cohort and self.ledger is None:
            return self.state._replace(excluded=(), fresh=None)
        state = self._engine.round(self.state, t, cohort, lr)
        unusable = bool(cohort) and len(state.excluded) == len(cohort)
        self._unusable = self._unusable + 1 if unusable else 0
        if self._unusable == PATIENCE:
            raise RunError(f"No client sent a usable update in {PATIENCE} consecutive rounds.")
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
