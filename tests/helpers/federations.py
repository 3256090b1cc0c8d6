"""A grid whose replies can be spoilt, and a small run to play over it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import Message
from safetensors.torch import load_file

from wima.flower import Federation, LocalGrid, Options, client_app
from wima.flower.grid import Node
from wima.runs.build import build, build_task
from wima.runs.run import read_run
from wima.runs.settings import make_settings

AVERAGERS = ["wima:window=2", "wima:window=3:part=classifier", "ema", "lawa:k=2:every=1"]
SIZES = (9, 20, 14, 5, 11)


class FaultyGrid(LocalGrid):
    """Clients 0, 1, ... on nodes 100, 101, ...; a message is answered when it is pushed.

    spoil(node, message, reply): what arrives instead of the reply; None: nothing does.
    """

    def __init__(
        self, spoil: Callable | None = None, *, clients: int = len(SIZES), **config: str | bool
    ) -> None:
        own = {"files": True, **config}  # the data of these runs are in a file
        super().__init__(client_app, clients, workers=1, node_config=own)
        self.nodes = {100 + i: node for i, node in enumerate(self.nodes.values())}
        self.spoil = spoil or (lambda node, message, reply: reply)
        self.sent: list[tuple[int, str]] = []  # node, kind of message

    @property
    def nodes(self) -> dict[int, Node]:
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: dict[int, Node]) -> None:
        self._nodes = nodes

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        self.sent.append((node, message.metadata.message_type))
        number = super()._push(message)
        reply = self.spoil(node, message, self._replies.pop(number).result())
        if reply is not None:
            self.deliver(reply)
        return number

    def deliver(self, reply: Message) -> None:
        """Let a reply arrive."""
        future: Future[Message] = Future()
        future.set_result(reply)
        self._replies[reply.metadata.reply_to_message_id] = future


def uneven_data(folder: Path) -> str:
    """A file with clients of several sizes."""
    random = np.random.default_rng(1)
    x = random.normal(size=(sum(SIZES), 6)).astype(np.float32)
    y = random.integers(0, 3, sum(SIZES))
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    file = folder / "uneven.npz"
    np.savez(file, x=x, y=y, client=client, x_test=x[:30], y_test=y[:30])
    return str(file)


def settings_of(tmp_path, **changes):
    return make_settings(
        {
            "data": uneven_data(tmp_path),
            "rounds": 5,
            "clients_per_round": 3,
            "lr": 0.05,
            "batch_size": 4,
            "seed": 3,
            "averagers": AVERAGERS,
            "engine": "serial",
            **changes,
        }
    )


def simulated(settings, **instead):
    """Records and final models of the simulator."""
    with build(settings, **instead) as simulation:
        records = list(simulation)
        return records, simulation.vectors()


def models_of(run, settings):
    """The final models of a run folder, as vectors."""
    layout = build_task(settings).layout
    found = {}
    for file in (run.path / "models").glob("*.safetensors"):
        tensors = load_file(file)
        assert list(tensors) and set(tensors) == set(layout.slices)
        found[file.stem] = torch.cat([tensors[name].reshape(-1) for name in layout.slices])
    return found


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7)


def assert_models(run, settings, expected):
    """The last models of the run are the expected ones."""
    assert_same(models_of(run, settings), expected)


def over(grid, settings, out, **options):
    """Play over a grid: the strategy, and the finished run."""
    strategy = Federation(settings, out, Options(**options))
    strategy.start(grid)
    return strategy, read_run(out)
