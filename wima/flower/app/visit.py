"""A client's part of a round, on its node, and what it remembers there between visits.

The memory is kept by visit: after the last visit that the server counted, and after the newest one.
The server says which of the two it knows.  So a client whose update was lost or rejected, or whose
server restarted, resumes from the memory that matches the server's state.
"""

import json
import logging
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor

from wima.algorithms.base import State
from wima.core.errors import UsageError, check
from wima.core.vector import Vector, one_thread
from wima.data.federated import FederatedData
from wima.data.sets import SUMMARIES
from wima.data.split import PACHINKO
from wima.flower.arrays import entry, to_arrays, to_tensors, unpack
from wima.runs.build import build_task
from wima.runs.settings import Choice, Settings, make_settings
from wima.simulation.local import Problem, Solver
from wima.simulation.options import LocalSGD
from wima.simulation.task import Task
from wima.storage.segments import Segments
from wima.storage.states import decode, encode

log = logging.getLogger(__name__)
ARRAYS, ABOUT = "wima.memory", "wima.visits"  # records of the node's state


class Refused(UsageError):  # noqa: N818  (it is an answer)
    """What the server asked for and the node does not do; the message quotes no file."""


def check_known(settings: Settings) -> None:
    """Raise if the settings name code outside the package: nodes never import such code."""
    own = settings.own_names()
    check(
        not own,
        f"{', '.join(own)}: Flower nodes do not import your own code; use `wima run`, or add it to "
        "the package.",
    )


class OwnData(FederatedData):
    """The examples of one client, whatever its client number."""

    def _rows(self, i: int) -> slice:
        return super()._rows(0)


class Call(NamedTuple):
    """A request from the server, with everything needed to answer it."""

    settings: Settings
    solver: Solver
    problem: Problem  # so far only the full gradient at w is asked for
    counted: int  # the round of the client's last visit that the server knows of

    def answer(self, **update: Vector) -> RecordDict:
        count = MetricRecord({"examples": self.solver.task.data.size(self.problem.client)})
        return RecordDict({"update": to_arrays(update), "visit": count})


def visit(content: RecordDict, context: Context, client: int) -> RecordDict:
    """Solve the client's problem; the delta goes to the server, the memory stays here."""
    call = _read(content, context, client)
    algorithm = call.settings.make("algorithm")
    w, trained = call.problem.w, call.problem.w[: call.solver.task.trained]
    root, folder = context.node_config.get("memory"), None
    if root:
        folder = Path(str(root)).expanduser() / call.settings.run_id / f"client-{client}"
    arrays, about = content.array_records["server"], content.config_records["round"]
    with one_thread():
        server = unpack(arrays, entry(about, "server", str), algorithm.init(trained))
        memory = NodeMemory(context.state, folder)
        before = memory.read(call.counted, algorithm.client_init(trained))
        problem = call.problem._replace(
            local=algorithm.local(trained, server, before),
            full_gradient=algorithm.full_gradient == "own",
            path_gradient=algorithm.path_gradient,
        )
        done, rest = call.solver.solve(problem)
        extra, after = algorithm.client_finish(done, server, before)
    memory.write({call.counted: before, problem.t: after})
    more = {"rest": w[len(trained) :] - rest} if len(rest) else {}
    more |= {} if extra is None else {"extra": extra}
    return call.answer(delta=done.delta, **more)


def full_gradient(content: RecordDict, context: Context, client: int) -> RecordDict:
    """The client's full gradient at w."""
    call = _read(content, context, client)
    with one_thread():
        done, _ = call.solver.solve(call.problem)
    return call.answer(gradient=done.gradient)


def _read(content: RecordDict, context: Context, client: int) -> Call:
    model, about = content.array_records["model"], content.config_records["round"]
    data, files = str(context.node_config.get("data", "")), context.node_config.get("files")
    settings, task = _task(entry(about, "settings", str), data, files is True)
    clients = task.data.num_clients
    if not data and client >= clients:
        raise Refused(
            f"The data set has clients 0 ... {clients - 1}, but this node is client {client}; "
            "start it with another partition-id."
        )
    x, y = (task.data.x, task.data.y) if data else task.data.client(client)
    own = OwnData(x, y, np.array([0, len(x)]), None, task.data.classes)
    problem = Problem(
        t=entry(about, "t", int),
        client=client,
        lr=entry(about, "lr", float),
        w=to_tensors(model)["w"].to(settings.device),
        local=None,
        full_gradient=True,
        share=entry(about, "share", float),
    )
    solver = Solver(task._replace(data=own), settings.part(LocalSGD), settings.seed)
    return Call(settings, solver, problem, entry(about, "counted", int))


# All that a node takes from the server's settings; it ignores the others.
TAKEN = {"algorithm", "model", "data", "clients", "alpha", "split", "data_seed", "client_test"}
TAKEN |= {"seed", "device", "eval_batch_size", *(field.name for field in fields(LocalSGD))}
WORDS = {"augment", "init", "metric", "norm", "option", "shortcut"}  # options with listed values


@lru_cache(maxsize=2)
def _task(text: str, data: str, files: bool) -> tuple[Settings, Task]:
    """The task of the settings; built once, however many clients a process runs.

    data: the node's own examples.  files: whether the settings may name files of the node.
    """
    try:
        settings = make_settings(tomllib.loads(text))
        check_known(settings)
        own = {"data": Choice(name=data), "clients": None, "alpha": None, "split": None}
        taken = settings.model_dump(include=TAKEN) | (own if data else {})
        if not files:
            _check_names(settings, bool(data))
    except ValueError as error:
        raise Refused(str(error)) from None
    return settings, build_task(make_settings(taken))


def _check_names(settings: Settings, own_data: bool) -> None:
    """Raise if a value that the node takes could be anything but a number or a published name."""
    device = re.fullmatch(r"(cpu|cuda|mps)(:\d{1,3})?", settings.device)
    texts = {} if device else {"device": settings.device}
    if not own_data:
        texts |= {} if settings.data.name in SUMMARIES else {"data": settings.data.name}
        texts |= {} if settings.split in (None, PACHINKO) else {"split": settings.split}
    for setting in ("algorithm", "model") if own_data else ("algorithm", "model", "data"):
        for name, value in getattr(settings, setting).parameters.items():
            values = value if isinstance(value, list) else [value]
            if name not in WORDS and not all(isinstance(v, int | float) for v in values):
                texts[f"{setting}.{name}"] = value
    refused = ", ".join(f"{name}={value!r:.60}" for name, value in texts.items())
    check(
        not refused,
        f"{refused}: nodes take only numbers and the names of data sets and options from a server. "
        "To let its settings name files, start the node with files=true in its --node-config.",
    )


class NodeMemory:
    """A client's memory in the node's state; with a folder, also in a file that outlives it."""

    def __init__(self, records: RecordDict, folder: Path | None = None) -> None:
        self._records = records
        self._store = None if folder is None else Segments(folder)

    def read(self, visit: int, initial: State) -> State:
        """The memory after the visit in that round; `initial` if there was none (-1)."""
        if visit < 0 or initial == ():
            return initial
        for about, tensor in self._kept():
            if str(visit) in about:
                return decode(about[str(visit)], initial, tensor, {})
        log.warning("The memory of the visit in round %d is lost; it is reinitialised.", visit + 1)
        return initial

    def write(self, states: Mapping[int, State]) -> None:
        """Keep only the memory after these visits."""
        tensors: dict[str, Tensor] = {}
        about = {
            str(visit): encode(state, str(visit), tensors, {})
            for visit, state in states.items()
            if visit >= 0 and state != ()
        }
        if not about:
            return
        self._records[ARRAYS] = to_arrays(tensors)
        self._records[ABOUT] = ConfigRecord({"visits": json.dumps(about)})
        if self._store is not None:
            self._store.keep([self._store.write("memory", tensors, about)])

    def _kept(self) -> Iterator[tuple[dict[str, Any], Callable[[str], Tensor]]]:
        """Yields what was written: the structure for each visit, and its tensors by name."""
        arrays, about = self._records.get(ARRAYS), self._records.get(ABOUT)
        if isinstance(arrays, ArrayRecord) and isinstance(about, ConfigRecord):
            yield json.loads(str(about["visits"])), to_tensors(arrays).__getitem__
        if self._store is not None:
            for name in self._store.names("memory")[-1:]:
                yield self._store.about(name), partial(self._store.read, name)
