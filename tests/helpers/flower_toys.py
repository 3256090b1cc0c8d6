"""A small Flower app whose figures are easy to check: clients pull a vector towards their own."""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import random

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from wima.flower import LocalGrid

NODES, ROUNDS, W = 6, 6, 3


def target(partition: int) -> np.ndarray:
    return np.linspace(partition, partition + 1, 4, dtype=np.float32)


def initial() -> ArrayRecord:
    arrays = {
        "w": np.zeros(4, np.float32),
        "bias": np.zeros((), np.float32),
        "steps": np.zeros(1, np.int64),
    }
    return record(arrays)


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def numpy(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in arrays.items()}


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    """Equal names, dtypes, shapes and bytes."""
    return list(a) == list(b) and all(a[n].data == b[n].data for n in a)


def metrics(arrays: ArrayRecord) -> MetricRecord:
    w = arrays["w"].numpy().astype(np.float64)
    return MetricRecord({"loss": float(((w - 3) ** 2).sum()), "accuracy": float(w.mean())})


def pulling(fails: tuple[int, ...] = (), score=lambda partition, arrays: metrics(arrays)):
    """Clients that draw noise from the global generators; in rounds `fails` all of them fail.

    score(partition, arrays): the metrics that a client returns.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context) -> Message:
        if message.content["config"]["server-round"] in fails:
            raise RuntimeError("no data today")
        partition = context.node_config["partition-id"]
        arrays = numpy(message.content["arrays"])
        noise = np.random.normal() + random.random() + float(torch.rand(()))
        arrays["w"] = (arrays["w"] + 0.3 * (target(partition) - arrays["w"])).astype(np.float32)
        arrays["bias"] = np.asarray(arrays["bias"] + 0.1 * noise, np.float32)
        arrays["steps"] = arrays["steps"] + 1
        weight = MetricRecord({"num-examples": partition + 1})
        return Message(RecordDict({"arrays": record(arrays), "metrics": weight}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context) -> Message:
        found = score(context.node_config["partition-id"], message.content["arrays"])
        found = MetricRecord({**found, "num-examples": 1})
        return Message(RecordDict({"metrics": found}), reply_to=message)

    return app


def grid(app: ClientApp | None = None, **settings) -> LocalGrid:
    return LocalGrid(app or pulling(), NODES, **{"workers": 1, **settings})


def play(strategy, app=None, *, evaluate=metrics, rounds=ROUNDS, start=None, **options):
    """A run; the result, and the models that the server evaluated, by round in order of calls."""
    calls: dict[int, list[ArrayRecord]] = {}

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        random.random(), np.random.random(), torch.rand(1)  # as loaders of data do
        calls.setdefault(server_round, []).append(record(numpy(arrays)))
        return evaluate(arrays) if evaluate else None

    options.setdefault("evaluate_fn", evaluate_fn)
    with grid(app) as nodes:
        return strategy.start(nodes, start or initial(), rounds, **options), calls


def mean(records: list[ArrayRecord]) -> ArrayRecord:
    """The mean of floating arrays, in float64; integers of the newest."""
    newest = numpy(records[-1])
    arrays = {
        name: np.mean([r[name].numpy().astype(np.float64) for r in records], axis=0)
        for name in ("w", "bias")
    }
    return record({n: arrays.get(n, a).astype(a.dtype) for n, a in newest.items()})


def feed(strategy, models, first=1):
    for t, arrays in enumerate(models, first):
        strategy.averaging.add(t, record(arrays))
    return strategy.averaging


def drawn(n: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"w": rng.normal(size=(2, 3)).astype(np.float32), "n": np.array([k])} for k in range(n)]
