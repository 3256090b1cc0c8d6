"""A grid in this process, and a small run to play over it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

# Messages carry the identity of the process's task; on a real grid, Flower sets it.
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from wima.flower import Federation, Options, client_app
from wima.runs.build import build, build_task
from wima.runs.folder import read_run
from wima.runs.settings import make_settings

AVERAGERS = ["wima:window=2", "wima:window=3:part=classifier", "ema", "lawa:k=2:every=1"]
SIZES = (9, 20, 14, 5, 11)


class LocalGrid(Grid):
    """Clients 0, 1, ... on nodes 100, 101, ...; a message is answered when it is pushed.

    spoil(node, message, reply): what arrives instead of the reply; None: nothing does.
    """

    def __init__(self, clients: int, spoil: Callable | None = None, **config: str) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.contexts = {100 + i: _context(100 + i, i, config) for i in range(clients)}
        self.spoil = spoil or (lambda node, message, reply: reply)
        self.sent: list[tuple[int, str]] = []  # node, kind of message
        self._numbers, self._replies = count(), {}

    def set_run(self, run) -> None:
        """There is only one."""

    @property
    def run(self):
        raise RuntimeError("there is none")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        for message in messages:
            number, node = str(next(self._numbers)), message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = number
            self.sent.append((node, message.metadata.message_type))
            reply = self.spoil(node, message, self._answer(node, message))
            if reply is not None:
                self._replies[number] = reply
        return [message.metadata.message_id for message in messages]

    def _answer(self, node: int, message: Message) -> Message:
        try:
            return client_app(message, self.contexts[node])
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def _context(node: int, client: int, config: dict[str, str]) -> Context:
    node_config = {"partition-id": client, **config}
    return Context(1, node, node_config, RecordDict(), {})


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


def over(grid, settings, out, **options):
    """Play over a grid: the strategy, and the finished run."""
    strategy = Federation(settings, out, Options(**options))
    strategy.start(grid)
    return strategy, read_run(out)
