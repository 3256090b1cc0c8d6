"""All our algorithms as one Flower strategy, and the ServerApp that runs it.

The round loop, averagers, records, checkpoints and models are those of `wima run`.  Only the engine
differs: it sends local problems to nodes and receives their updates.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from safetensors.torch import load_file

from wima.algorithms.base import Algorithm, State, Visit
from wima.algorithms.traffic import emptied, reads, sends_extra
from wima.core.errors import RunError, check, unknown
from wima.core.text import echo
from wima.core.vector import Vector
from wima.flower.app.client import client_app
from wima.flower.app.nodes import Nodes, Options
from wima.flower.app.visit import check_known
from wima.flower.arrays import pack, to_arrays, to_tensors
from wima.runs import launch
from wima.runs.build import build_task
from wima.runs.folder import check_free, default_path
from wima.runs.run import Run, read_run
from wima.runs.settings import Settings, load_settings
from wima.simulation.round import Engine, RoundState, RunningMean, Setup, Updates, observed, step
from wima.simulation.simulate import check_server_rule

log = logging.getLogger(__name__)
GRADIENT = f"{MessageType.TRAIN}.gradient"
METRIC = "accuracy"  # the metric of the records' per-client results; every task in settings has it


class LastVisit(NamedTuple):
    """All that the server remembers about a client."""

    t: int  # the round of the last visit that counted; -1: none yet


def server_side(complete: Algorithm) -> Algorithm:
    """The algorithm without its clients' memory, which stays on their nodes."""
    base: Any = type(complete)

    class ServerSide(base):  # type: ignore[misc]
        def client_init(self, w: Vector) -> LastVisit:
            return LastVisit(-1)

        # Nodes run the next two hooks; here they are only tried, to learn what clients send.

        def local(self, w: Vector, server: State, client: LastVisit) -> Any:
            return super().local(w, server, complete.client_init(w))

        def client_finish(self, visit: Visit, server: State, client: LastVisit) -> Any:
            memory = complete.client_init(visit.start)
            return super().client_finish(visit, server, memory)[0], client

    return ServerSide(**vars(complete))


class Update(NamedTuple):
    """What a client sends: vectors by name, and its number of examples."""

    vectors: dict[str, Vector]
    examples: int


class Rejected(ValueError):  # noqa: N818  (it is a finding)
    """An update that cannot be used; the message says why."""


def read_update(reply: Message, sizes: Mapping[str, int]) -> Update:
    """The update in a reply; raises `Rejected` unless its vectors are finite and match `sizes`."""
    arrays, visit = (reply.content.get(name) for name in ("update", "visit"))
    if not isinstance(arrays, ArrayRecord) or not isinstance(visit, MetricRecord):
        raise Rejected(f"expected records update and visit, got {', '.join(reply.content)}")
    if set(arrays) != set(sizes):
        raise Rejected(f"expected arrays {', '.join(sizes)}, got {', '.join(arrays) or 'none'}")
    try:
        vectors = to_tensors(arrays)
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise Rejected(f"its arrays cannot be read: {error}") from None
    for name, vector in vectors.items():
        size = (sizes[name],)
        if vector.shape != size or vector.dtype != torch.float32:
            got = f"{vector.dtype} of shape {tuple(vector.shape)}"
            raise Rejected(f"{name} must be float32 of shape {size}, got {got}")
        if not bool(vector.isfinite().all()):
            raise Rejected(f"{name} is not finite")
    examples = visit.get("examples")
    if type(examples) is not int or examples < 1:
        raise Rejected(f"expected a number of examples, got {examples!r:.60}")
    return Update(vectors, examples)


def too_long(updates: Mapping[int, Update], model: float, largest: float) -> dict[int, str]:
    """Clients that sent a vector whose norm is too large, with the reason.

    A norm is too large if it exceeds both `largest` times the median norm of the other clients'
    vectors of that name and the norm of the model itself (or 1, if that is larger).  With fewer
    than two other clients, a median means little, and the limit is `largest` times the norm of the
    model.  So a single huge or tiny update cannot get an honest client rejected.
    """
    found, model = dict[int, str](), max(1.0, model)
    for name in {name for update in updates.values() for name in update.vectors}:
        norms = {i: float(update.vectors[name].norm()) for i, update in updates.items()}
        for i, norm in norms.items():
            others = [other for j, other in norms.items() if j != i]
            few = len(others) < 2
            limit = largest * model if few else max(largest * median(others), model)
            if not norm <= limit:
                found[i] = f"the norm of {name} is {norm:.3g}, more than {limit:.3g}"
    return found


class Visits(NamedTuple):
    """Where a round's visits take place."""

    state: RoundState  # before the round
    t: int
    lr: float
    nodes: dict[int, int]  # client -> node, for the clients that take part


class Federation(Strategy, Engine):
    """Runs the settings over a grid, and resumes the run if its folder `out` exists.

    For the simulation's round loop, which takes the place of Flower's, this is the engine.
    """

    name = "flower"  # the engine's name in the run's records

    def __init__(
        self, settings: Settings, out: Path | None = None, options: Options | None = None
    ) -> None:
        check_known(settings)
        complete = settings.make("algorithm")
        optimizer = settings.make("server")
        check_server_rule(complete, optimizer, settings.stack_server)
        self.settings = settings.model_copy(update={"checkpoint_every": 1})
        self.out, self.options = out or default_path(settings), options or Options()
        self.rejected = 0  # invalid updates so far
        self._algorithm = server_side(complete)
        self._sends_extra, self._reads = sends_extra(complete), reads(complete)
        self.setup: Setup
        self._nodes: Nodes
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
        in_settings = (initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn)
        check(
            all(value is None for value in in_settings),
            "The initial model, the rounds, training and evaluation are defined by the settings; "
            "pass start() only a grid and, optionally, a timeout.",
        )
        if timeout is not None:
            self.options = replace(self.options, round_seconds=timeout)

        def make_engine(setup: Setup) -> Engine:
            self.setup = setup
            clients, file = setup.task.data.num_clients, self.out / "nodes.json"
            self._nodes = Nodes(grid, clients, self.options, file)
            return self

        def cohort(seed: int, t: int) -> list[int]:
            return self._nodes.cohort(seed, t, self.settings.clients_per_round)

        parts: dict[str, Any] = {"algorithm": self._algorithm, "make": make_engine}
        parts["cohorts"] = cohort
        if (self.out / "settings.toml").is_file():
            self._check_same()
            return as_result(launch.resume(self.out, names=self.settings.own_names(), **parts))
        return as_result(launch.launch(self.settings, self.out, **parts))

    def _check_same(self) -> None:
        """Raise if the folder holds a different run, or a finished one."""
        run = read_run(self.out)
        here, there = (settings.in_results() for settings in (self.settings, run.settings))
        names = sorted({*here, *there})
        differ = [f"{n}: {there.get(n)!r} there" for n in names if here.get(n) != there.get(n)]
        check(
            not differ,
            f"{self.out} contains a run with different settings ({'; '.join(differ)}); set out to "
            "another folder.",
        )
        check(
            run.status["state"] != "done",
            f"The run in {self.out} is finished; to repeat it, use another folder, for example "
            'out = "runs/again" in the run config.',
        )

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        setup, server, there = self.setup, state.server, self._nodes.connected()
        visits = Visits(state, t, lr, {i: there[i] for i in cohort if i in there})
        trained = len(state.w[: setup.task.trained])

        # Phase A of MIME: the cohort's mean full gradient at w, without clients that failed.
        gradient = None
        if self._algorithm.full_gradient == "cohort":
            mean = RunningMean()
            updates = self._updates(GRADIENT, visits, (), {"gradient": trained})
            for i, update in updates.items():
                mean.add(update.vectors["gradient"], self._weight(i, update, visits))
            gradient = mean.value
            server = observed(setup, server, t, gradient)
            visits = visits._replace(nodes={i: visits.nodes[i] for i in updates})

        # The nodes train, from the model and the part of the server's state that clients read.
        sizes = {"delta": trained}
        sizes |= {"rest": len(state.w) - trained} if len(state.w) > trained else {}
        sizes |= {"extra": trained} if self._sends_extra else {}
        updates = self._updates(MessageType.TRAIN, visits, emptied(server, self._reads), sizes)
        received = Updates(setup, state)
        for i, update in updates.items():
            state.memory.write(i, LastVisit(t))
            vectors = {name: v.to(state.w.device) for name, v in update.vectors.items()}
            sent = {name: vectors.get(name) for name in ("extra", "rest")}
            received.add(self._weight(i, update, visits), vectors["delta"], **sent)

        # The server steps with the means; without any valid update, the model stays as it is.
        state = step(setup, state, server, received.means(t), t, gradient)
        return state._replace(excluded=tuple(i for i in cohort if i not in updates))

    def _updates(
        self, kind: str, visits: Visits, server: State, sizes: dict[str, int]
    ) -> dict[int, Update]:
        """Send a message to every node of the round; client -> its valid update, in cohort order.

        Logs what is left out and why, or ends the run at an invalid update if it is not robust.
        """
        t, nodes = visits.t + 1, visits.nodes  # in messages to users, rounds count from 1
        replies, lost = self._nodes.ask(list(self._messages(kind, visits, server)))
        good, bad = dict[int, Update](), dict[int, str]()
        for i, node in nodes.items():
            if node in lost:
                where = f"Round {t}: node {node} (client {i})"
                log.warning("%s is left out: %s.", where, lost[node])
            if node in replies:
                try:
                    good[i] = read_update(replies[node], sizes)
                except Rejected as error:
                    bad[i] = str(error)
        if self.options.robust:
            bad |= too_long(good, float(visits.state.w.norm()), self.options.largest_norm)
        for i, reason in sorted(bad.items()):
            self.rejected += 1
            reason = f"round {t}: the update of node {nodes[i]} (client {i}) is invalid: {reason}"
            if not self.options.robust:
                raise RunError(reason)
            log.warning("%s; it is left out (rejected so far: %d).", reason, self.rejected)
        return {i: update for i, update in good.items() if i not in bad}

    def _messages(self, kind: str, visits: Visits, server: State) -> Iterator[Message]:
        """One message per node of the round; they differ only in client-specific values."""
        state, t, lr, nodes = visits
        model, (server_arrays, text) = to_arrays({"w": state.w}), pack(server)
        same: dict[str, Any] = {"lr": float(lr), "server": text}
        same["settings"] = self.settings.to_toml()
        for i, node in nodes.items():
            counted = state.memory.read(i, state.w[: self.setup.task.trained]).t
            share = float(self.setup.faults.share(self.setup.seed, t, i))
            config = ConfigRecord({**same, "t": t, "counted": counted, "share": share})
            content = RecordDict({"model": model, "server": server_arrays, "round": config})
            yield Message(content, node, kind, group_id=str(t + 1))

    def _weight(self, i: int, update: Update, visits: Visits) -> float:
        """The client's number of examples, capped because a client could claim any number."""
        if self.setup.weighting != "examples":
            return 1.0
        most = self.options.most_examples or self.setup.task.data.size(i)
        node = visits.nodes[i]
        if update.examples > most and node not in self._capped:
            self._capped.add(node)
            log.warning(
                "Node %d (client %d) claims %d examples and is weighted with %d; if nodes use "
                "their own data, set most-examples.",
                *(node, i, update.examples, most),
            )
        return float(min(update.examples, most))

    def _not_used(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("Federation.start does not use Flower's round loop.")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _not_used

    def summary(self) -> None:
        log.info("%s, averagers %s", self.settings.algorithm, self.settings.averagers)


def as_result(run: Run) -> Result:
    """The metrics and `models` of the run, by name; `arrays` is the plain model, named in `served`.

    `clients` is the same as for an averaged strategy: by round, model and metric.
    """
    files = sorted((run.path / "models").glob("*.safetensors"))
    models = {file.stem: to_arrays(load_file(file)) for file in files}
    result = Result(arrays=models["plain"])
    clients: dict[int, Any] = {}
    vars(result).update(models=models, served="plain", clients=clients)
    for record in run.lines():
        t = record["t"]
        if "clients" in record:
            clients[t] = {model: {METRIC: values} for model, values in record["clients"].items()}
        metrics = {
            f"{model}/{name}": value
            for model, values in record["metrics"].items()
            for name, value in values.items()
            if value is not None
        }
        if metrics:
            result.evaluate_metrics_serverapp[t] = MetricRecord(metrics)
    return result


def as_text(result: Result, folder: Path) -> Iterator[str]:
    """The last metrics of every model, and where the models are."""
    for t, metrics in list(result.evaluate_metrics_serverapp.items())[-1:]:
        values = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        yield f"Round {t}: {values}"
    names = ", ".join(f"{name}.safetensors" for name in vars(result)["models"])
    yield f"Models in {folder / 'models'}: {names}"


RUN_KEYS = ("settings", "overrides", "out")


def read_order(config: Mapping[str, Any]) -> tuple[Settings, Path | None, Options]:
    """Read an app's run config, `[tool.flwr.app.config]` of its pyproject.toml.

    settings: a preset or the path of a .toml file; overrides: key=value pairs separated by spaces;
    out: the run folder; and the options, spelt with dashes, as in min-nodes.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Options)}
    for key in config:
        if key not in RUN_KEYS and key not in names:
            raise unknown("key of the run config", key, [*RUN_KEYS, *names])
    for key in RUN_KEYS:
        value = config.get(key, "")
        check(isinstance(value, str), f"{key} in the run config must be a string, got {value!r}.")
    overrides = str(config.get("overrides", "")).split()
    settings = load_settings(str(config.get("settings") or "digits"), overrides)
    out = config.get("out")
    options = {names[key]: value for key, value in config.items() if key in names}
    return settings, Path(str(out)) if out else None, Options(**options)


server_app = ServerApp()
"""The ServerApp that runs all our algorithms.

Its run config has `settings`, a preset or a file; `overrides`, changes to these settings; `out`,
the run folder; and the fields of `Options`, spelt with dashes, as in `min-nodes`.
"""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config describes."""
    settings, out, options = read_order(context.run_config)
    federation = Federation(settings, out, options)
    for line in as_text(federation.start(grid), federation.out.resolve()):
        echo(line)


def simulate(settings: Settings, out: Path, options: Options) -> Run:
    """Run on the processes of this machine, one node per client."""
    from wima.flower.grid import LocalGrid  # imported here: real nodes do not need it

    check_free(out)
    nodes = build_task(settings).data.num_clients
    grid = LocalGrid(
        client_app,
        nodes,
        workers=settings.workers,
        seed=settings.seed,
        node_config={"files": True},  # the nodes are this user's own processes
    )
    with grid:
        Federation(settings, out, options).start(grid)
    return read_run(out)
