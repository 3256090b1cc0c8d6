"""All our algorithms as one Flower strategy: a simulation whose clients run on Flower nodes.

The round loop, averagers, records, checkpoints and models are those of `wima run`.  Only the engine
differs: it sends local problems to nodes and receives their updates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from wima import algorithms
from wima.algorithms import server_opt
from wima.algorithms.base import State
from wima.algorithms.traffic import emptied, reads, sends_extra
from wima.core.errors import RunError, UsageError, check
from wima.core.vector import Vector
from wima.flower.app.options import Options, check_known
from wima.flower.app.records import pack, to_arrays
from wima.flower.app.result import as_result
from wima.flower.app.roster import Roster
from wima.flower.app.serverside import Counted, ServerSide
from wima.flower.app.updates import Rejected, Update, read_update, too_long
from wima.runs import launch
from wima.runs.folder import read_run
from wima.runs.settings import Settings
from wima.simulation.engines.base import RoundState, RunningMean, Setup
from wima.simulation.round import Engine, Updates, observed, step
from wima.simulation.simulate import check_server_rule

log = logging.getLogger(__name__)
GRADIENT = f"{MessageType.TRAIN}.gradient"


class Current(NamedTuple):
    """The current round."""

    state: RoundState
    server: State
    t: int
    nodes: dict[int, int]  # client -> node, for the clients that take part


class Federation(Strategy, Engine):
    """Runs the settings over a grid, and resumes the run if its folder `out` exists.

    For the simulation's round loop, this is the engine: a round is `configure_train`, the nodes'
    work, `aggregate_train`.

    Examples:
        >>> from wima.flower import Federation
        >>> from wima.runs.settings import load_settings
        >>> strategy = Federation(load_settings("digits", ["algorithm=scaffold", "rounds=5"]))
        >>> strategy.settings.algorithm.name
        'scaffold'
    """

    name = "flower"  # the engine's name in the run's records

    def __init__(
        self, settings: Settings, out: Path | None = None, options: Options | None = None
    ) -> None:
        check_known(settings)
        complete = settings.algorithm.make("algorithm", algorithms.BY_NAME)
        optimizer = settings.server.make("server optimizer", server_opt.BY_NAME)
        check_server_rule(complete, optimizer, settings.stack_server)
        self.settings = settings.model_copy(update={"checkpoint_every": 1})
        self.out, self.options = out or launch.default_path(settings), options or Options()
        self.rejected = 0  # invalid updates so far
        self._algorithm = ServerSide(complete=complete)
        self._sends_extra, self._reads = sends_extra(complete), reads(complete)
        self._grid: Grid
        self.setup: Setup
        self._roster: Roster
        self._now: Current
        self._after: RoundState
        self._gradient: Vector | None = None  # the mean of MIME's phase A
        self._capped: set[int] = set()  # nodes that claimed more examples than allowed

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """Run to the end; the run folder has the records, checkpoints and final models."""
        given = (initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn)
        check(
            all(value is None for value in given),
            "The initial model, the rounds, training and evaluation are defined by the settings; "
            "pass start() only a grid and, optionally, a timeout.",
        )
        self._grid = grid
        if timeout is not None:
            self.options = replace(self.options, round_seconds=timeout)
        parts: dict[str, Any] = {"algorithm": self._algorithm, "make": self._engine}
        parts["cohorts"] = self._cohort
        if (self.out / "settings.toml").is_file():
            self._check_same()
            return as_result(launch.resume(self.out, **parts))
        return as_result(launch.launch(self.settings, self.out, **parts))

    def _check_same(self) -> None:
        """Raise if the folder holds a different run, or a finished one."""
        run = read_run(self.out)
        here, there = (settings.in_results() for settings in (self.settings, run.settings))
        names = sorted({*here, *there})
        differ = [f"{n}: {there.get(n)!r} there" for n in names if here.get(n) != there.get(n)]
        if differ:
            raise UsageError(
                f"{self.out} contains a run with different settings ({'; '.join(differ)}); set out "
                "to another folder."
            )
        check(
            run.status["state"] != "done",
            f"The run in {self.out} is finished; to repeat it, use another folder, for example "
            "flwr run examples/flower --run-config 'out=\"runs/again\"'.",
        )

    def _engine(self, setup: Setup) -> Federation:
        self.setup = setup
        clients, file = setup.task.data.num_clients, self.out / "nodes.json"
        self._roster = Roster(self._grid, clients, self.options, file)
        return self

    def _cohort(self, seed: int, t: int) -> list[int]:
        return self._roster.cohort(seed, t, self.settings.clients_per_round)

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        there = self._roster.connected()
        nodes = {i: there[i] for i in cohort if i in there}
        self._now = Current(state, state.server, t, nodes)
        arrays = to_arrays({"w": state.w})
        about: dict[str, ConfigRecordValues] = {
            "t": t,
            "lr": float(lr),
            "settings": self.settings.to_toml(),
        }
        if self._algorithm.full_gradient == "cohort":
            self._observe(arrays, ConfigRecord(about))
        messages = self.configure_train(t + 1, arrays, ConfigRecord(about), self._grid)
        self.aggregate_train(t + 1, self._ask(messages))
        counted = {i for i in cohort if self._after.memory.written(i)}
        return self._after._replace(excluded=tuple(i for i in cohort if i not in counted))

    def _observe(self, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Phase A of MIME: the cohort's mean full gradient at w, without clients that failed."""
        now, trained = self._now, len(self._trained())
        replies = self._ask(self._messages(GRADIENT, arrays, config, ()))
        updates = self._updates(replies, {"gradient": trained})
        mean = RunningMean()
        for i, update in updates.items():
            mean.add(update.vectors["gradient"], self._weight(i, update))
        self._gradient = mean.value
        server = observed(self.setup, now.server, now.t, self._gradient)
        self._now = now._replace(server=server, nodes={i: now.nodes[i] for i in updates})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages that tell the round's clients to train from these arrays."""
        server = emptied(self._now.server, self._reads)
        return self._messages(MessageType.TRAIN, arrays, config, server)

    def _messages(
        self, kind: str, arrays: ArrayRecord, config: ConfigRecord, server: State
    ) -> list[Message]:
        """One message per node of the round; they differ only in client-specific values."""
        state, _, t, nodes = self._now
        server_arrays, text = pack(server)
        messages = []
        for i, node in nodes.items():
            counted = state.memory.read(i, self._trained()).t
            share = float(self.setup.faults.share(self.setup.seed, t, i))
            own = {"server": text, "counted": counted, "share": share}
            records = {"model": arrays, "server": server_arrays}
            content = RecordDict({**records, "round": ConfigRecord({**dict(config), **own})})
            messages.append(Message(content, node, kind, group_id=str(t + 1)))
        return messages

    def _ask(self, messages: list[Message]) -> list[Message]:
        """The nodes' replies, without those of lost nodes."""
        answers = self._roster.ask(messages)
        for i, node in self._now.nodes.items():
            if node in answers.lost:
                where = (self._now.t + 1, node, i, answers.lost[node])
                log.warning("Round %d: node %d (client %d) is left out: %s.", *where)
        return list(answers.replies.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step with the means of the valid updates; returns None if there are none."""
        now, w = self._now, self._trained()
        sizes = {"delta": len(w)}
        sizes |= {"rest": len(now.state.w) - len(w)} if len(now.state.w) > len(w) else {}
        sizes |= {"extra": len(w)} if self._sends_extra else {}
        updates = self._updates(replies, sizes)
        self._after = self._step(updates)
        if not updates:
            return None, None
        counts = MetricRecord({"clients": len(updates), "rejected": self.rejected})
        return to_arrays({"w": self._after.w}), counts

    def _updates(self, replies: Iterable[Message], sizes: dict[str, int]) -> dict[int, Update]:
        """Client -> its valid update, in cohort order."""
        clients = {node: i for i, node in self._now.nodes.items()}
        good: dict[int, Update] = {}
        bad: dict[int, str] = {}
        for reply in replies:
            i = clients.get(reply.metadata.src_node_id)
            if i is None:  # this node was not asked
                continue
            try:
                good[i] = read_update(reply, sizes)
            except Rejected as error:
                bad[i] = str(error)
        if self.options.robust:
            bad |= too_long(good, float(self._now.state.w.norm()), self.options.largest_norm)
        self._reject(bad)
        return {i: good[i] for i in self._now.nodes if i in good and i not in bad}

    def _reject(self, bad: dict[int, str]) -> None:
        """Log which updates are left out and why, or end the run if it is not robust."""
        for i, reason in sorted(bad.items()):
            self.rejected += 1
            t, node = self._now.t + 1, self._now.nodes[i]
            reason = f"round {t}: the update of node {node} (client {i}) is invalid: {reason}"
            if not self.options.robust:
                raise RunError(reason)
            log.warning("%s; it is left out (rejected so far: %d).", reason, self.rejected)

    def _step(self, updates: dict[int, Update]) -> RoundState:
        """The server step, the same as in every engine."""
        state, server, t, _ = self._now
        received = Updates(self.setup, state)
        for i, update in updates.items():
            state.memory.write(i, Counted(t))
            vectors = {name: v.to(state.w.device) for name, v in update.vectors.items()}
            extra, rest = vectors.get("extra"), vectors.get("rest")
            received.add(self._weight(i, update), vectors["delta"], extra, rest)
        means = received.means(self.setup, t)
        if means is None:
            return state._replace(client_gradient=None)
        if self._gradient is not None:
            means = means._replace(client_gradient=self._gradient)
        return step(self.setup, state, server, means, t)

    def _trained(self) -> Vector:
        return self._now.state.w[: self.setup.trained]

    def _weight(self, i: int, update: Update) -> float:
        """The client's number of examples, capped because a client could claim any number."""
        if self.setup.weighting != "examples":
            return 1.0
        most = self.options.most_examples or self.setup.task.data.size(i)
        node = self._now.nodes[i]
        if update.examples > most and node not in self._capped:
            self._capped.add(node)
            log.warning(
                "Node %d (client %d) claims %d examples and is weighted with %d; if nodes use "
                "their own data, set most-examples.",
                *(node, i, update.examples, most),
            )
        return float(min(update.examples, most))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """No messages: models are evaluated on the server, on the settings' test examples."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing to aggregate; see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        log.info("%s, averagers %s", self.settings.algorithm, self.settings.averagers)
