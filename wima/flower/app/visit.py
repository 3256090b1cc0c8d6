"""A client's part of a round, on its node."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from wima import algorithms
from wima.algorithms.base import Algorithm
from wima.core.errors import check
from wima.core.vector import Vector, one_thread
from wima.data.batches import LocalSGD
from wima.data.federated import Array, FederatedData
from wima.flower.app.memory import NodeMemory
from wima.flower.app.options import check_known
from wima.flower.app.records import entry, to_arrays, to_tensors, unpack
from wima.runs.build import build_task
from wima.runs.settings import Choice, Settings, make_settings
from wima.simulation.local import Problem, Solver
from wima.simulation.task import Task


class OwnData(FederatedData):
    """The examples of one client, whatever its client number."""

    def _rows(self, i: int) -> slice:
        return super()._rows(0)


class Call(NamedTuple):
    """A request from the server, with everything needed to answer it."""

    client: int
    settings: Settings
    algorithm: Algorithm
    solver: Solver
    w: Vector
    t: int
    lr: float
    share: float
    counted: int  # the round of the client's last visit that the server knows of

    @property
    def examples(self) -> int:
        return self.solver.task.data.size(self.client)


def visit(content: RecordDict, context: Context, client: int) -> RecordDict:
    """Solve the client's problem; the delta goes to the server, the memory stays here."""
    call = _read(content, context, client)
    algorithm, trained = call.algorithm, call.w[: call.solver.task.trained]
    arrays, about = content["server"], content["round"]
    assert isinstance(arrays, ArrayRecord) and isinstance(about, ConfigRecord)
    with one_thread():
        server = unpack(arrays, entry(about, "server", str), algorithm.init(trained))
        memory = NodeMemory(context.state, _folder(context, call))
        before = memory.read(call.counted, algorithm.client_init(trained))
        local = algorithm.local(trained, server, before)
        own, path = algorithm.full_gradient == "own", algorithm.path_gradient
        address = (call.t, call.client, call.lr, call.w)
        done, rest = call.solver.solve(Problem(*address, local, own, path, call.share))
        extra, after = algorithm.client_finish(done, server, before)
    memory.write({call.counted: before, call.t: after})
    update = {"delta": done.delta}
    update |= {"rest": call.w[len(trained) :] - rest} if len(rest) else {}
    update |= {} if extra is None else {"extra": extra}
    return _answer(update, call)


def full_gradient(content: RecordDict, context: Context, client: int) -> RecordDict:
    """The client's full gradient at w."""
    call = _read(content, context, client)
    problem = Problem(call.t, call.client, call.lr, call.w, None, full_gradient=True)
    with one_thread():
        done, _ = call.solver.solve(problem)
    return _answer({"gradient": done.gradient}, call)


def _answer(update: dict[str, Vector], call: Call) -> RecordDict:
    count = MetricRecord({"examples": call.examples})
    return RecordDict({"update": to_arrays(update), "visit": count})


def _read(content: RecordDict, context: Context, client: int) -> Call:
    model, about = content["model"], content["round"]
    assert isinstance(model, ArrayRecord) and isinstance(about, ConfigRecord)
    data = str(context.node_config.get("data", ""))
    settings, task = _task(entry(about, "settings", str), data)
    x, y = (task.data.x, task.data.y) if data else _part(task, client)
    own = OwnData(x, y, np.array([0, len(x)]), None, task.data.classes)
    solver = Solver(task._replace(data=own), settings.part(LocalSGD), settings.seed)
    algorithm = settings.algorithm.make("algorithm", algorithms.BY_NAME)
    w = to_tensors(model)["w"].to(settings.device)
    t, counted = (entry(about, name, int) for name in ("t", "counted"))
    lr, share = (entry(about, name, float) for name in ("lr", "share"))
    return Call(client, settings, algorithm, solver, w, t, lr, share, counted)


@lru_cache(maxsize=2)
def _task(text: str, data: str) -> tuple[Settings, Task]:
    """The task of the settings; built once, however many clients a process runs."""
    settings = make_settings(tomllib.loads(text))
    check_known(settings)
    if data:
        own = {"data": Choice(name=data), "clients": None, "alpha": None, "split": None}
        return settings, build_task(settings.model_copy(update=own))
    return settings, build_task(settings)


def _part(task: Task, client: int) -> tuple[Array, Array]:
    clients = task.data.num_clients
    check(
        client < clients,
        f"The data set has clients 0 ... {clients - 1}, but this node is client {client}; start it "
        "with another partition-id.",
    )
    return task.data.client(client)


def _folder(context: Context, call: Call) -> Path | None:
    """The folder in which the client's memory outlives the run; None if there is none."""
    root = context.node_config.get("memory")
    if not root:
        return None
    return Path(str(root)).expanduser() / call.settings.run_id / f"client-{call.client}"
