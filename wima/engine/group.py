"""The processes of a distributed run: they connect, compare their settings, and send vectors.

Vectors travel as tensors, everything else as JSON; nothing is pickled.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from wima.core.errors import RunError, UsageError
from wima.core.vector import Vector
from wima.core.version import __version__
from wima.engine.pulse import PATIENCE, SILENCE, Pulse
from wima.engine.ranks import Place, place

JOIN = timedelta(minutes=5)  # until the last rank has joined
_FOREVER = timedelta(days=365)  # a visit may take long; `Pulse` detects lost ranks


@cache
def join() -> Group:
    """This process's group, joined at the first call."""
    return Group(place())


class Group:
    """All ranks, as seen by one of them.  Byte counts exclude network headers."""

    def __init__(self, here: Place) -> None:
        self.rank, self.size = here.rank, here.size
        self.sent, self.received = 0, 0  # bytes; a message to n ranks counts n times
        self._agreements = 0
        self._store = _meet(here)
        self.pulse = Pulse(_store(here, host=False), here.rank, here.size)
        atexit.register(self.leave)
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(here.local)
        with self._named():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=PrefixStore("gloo", self._store),
                rank=here.rank,
                world_size=here.size,
                timeout=_FOREVER,
            )
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        self.agree({**versions, "wima": __version__})

    def agree(self, facts: dict[str, Any]) -> None:
        """Raise on all ranks unless all have the same facts, which must be JSON values."""
        self._agreements += 1
        name = f"facts/{self._agreements}"
        self.pulse.needed = True
        with self._named():
            self._store.set(f"{name}/{self.rank}", json.dumps(facts))
            found = [json.loads(self._read(f"{name}/{rank}")) for rank in range(self.size)]
            self._store.set(f"{name}/read/{self.rank}", "")
            for rank in range(self.size if self.rank == 0 else 0):
                self._read(f"{name}/read/{rank}")  # rank 0 may hold the store
        if differences := list(_differences(found)):
            self.pulse.needed = False
            raise UsageError(
                "All ranks need the same settings, versions and data:\n  "
                + "\n  ".join(differences)
            )

    def _read(self, key: str) -> bytes:
        """Wait for a value that some rank writes."""
        while not self._store.check([key]):
            self.pulse.check()
            time.sleep(0.02)
        value: bytes = self._store.get(key)
        return value

    def begin(self) -> None:
        """A run begins: from now on, silence is a sign of failure."""
        self.pulse.needed, self.pulse.silence = True, SILENCE

    def end(self) -> None:
        """A run has ended: the other ranks are no longer needed."""
        self.pulse.needed, self.pulse.silence = False, PATIENCE

    def leave(self) -> None:
        """Leave the group; ranks that need this one exit."""
        self.pulse.needed = False
        self.pulse.stop(left=True)
        self.pulse.lost = self.pulse.lost or f"Rank {self.rank} left an earlier run unfinished."

    def tell(self, message: dict[str, Any]) -> None:
        """On rank 0: send a message to all others."""
        text = _as_bytes(message)
        self.share(torch.tensor([len(text)]))
        self.share(text)

    def hear(self) -> dict[str, Any]:
        """On the other ranks: the next message from rank 0."""
        size = int(self.share(torch.zeros(1, dtype=torch.int64)))
        return _from_bytes(self.share(torch.empty(size, dtype=torch.uint8)))

    def share(self, tensor: Vector) -> Vector:
        """Broadcast rank 0's tensor; the others pass one of the same shape to receive it."""
        tensor = tensor.contiguous()
        with self._named():
            dist.broadcast(tensor, 0)
        self._count(tensor, sent=self.rank == 0, times=self.size - 1 if self.rank == 0 else 1)
        return tensor

    def sum(self, vector: Vector) -> Vector:
        """The sum of all ranks' vectors, on rank 0; the backend chooses the order."""
        with self._named():
            dist.reduce(vector, 0)
        self._count(vector, sent=self.rank != 0, times=1 if self.rank else self.size - 1)
        return vector

    def send(self, vector: Vector, rank: int) -> None:
        with self._named():
            dist.send(vector.contiguous(), rank)
        self._count(vector, sent=True)

    def post(self, vector: Vector, rank: int) -> Posted:
        """Send a vector that must not change until `Posted.wait` returns."""
        with self._named():
            work = dist.isend(vector, rank)
        self._count(vector, sent=True)
        return Posted(self, vector, work)

    def receive(self, shape: int, like: Vector, rank: int) -> Vector:
        """A vector of length `shape` from a rank."""
        vector = torch.empty(shape, dtype=like.dtype, device=like.device)
        with self._named():
            dist.recv(vector, rank)
        self._count(vector, sent=False)
        return vector

    def report(self, message: dict[str, Any], rank: int = 0) -> list[Posted]:
        """Send a message to one rank."""
        text = _as_bytes(message)
        return [self.post(torch.tensor([len(text)]), rank), self.post(text, rank)]

    def reported(self, rank: int) -> dict[str, Any]:
        """The next message from a rank."""
        length = self.receive(1, torch.empty(0, dtype=torch.int64), rank)
        return _from_bytes(self.receive(int(length), torch.empty(0, dtype=torch.uint8), rank))

    def _count(self, tensor: Vector, sent: bool, times: int = 1) -> None:
        size = times * tensor.numel() * tensor.element_size()
        if sent:
            self.sent += size
        else:
            self.received += size

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Make network errors say which rank was lost."""
        self.pulse.check()
        try:
            yield
        except RunError:
            self.pulse.stop()
            raise
        except RuntimeError as error:
            reason = self.pulse.reason(error)
            self.pulse.stop()
            self.pulse.lost = self.pulse.lost or reason
            raise RunError(reason) from error


class Posted:
    """A vector being sent."""

    def __init__(self, group: Group, vector: Vector, work: dist.Work | None) -> None:
        self._group, self._vector, self._work = group, vector, work

    def wait(self) -> None:
        if self._work is not None:
            with self._group._named():
                self._work.wait()


def _store(here: Place, host: bool) -> Store:
    """A connection to the store shared by all ranks; a run restarted by torchrun has a new one."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = TCPStore(here.host, here.port, is_master=host, timeout=JOIN, wait_for_workers=False)
    except RuntimeError as error:
        raise RunError(
            f"Rank {here.rank} cannot connect to rank 0 at {here.host}:{here.port}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return PrefixStore(f"wima/{attempt}", store)


def _check_host(host: str) -> None:
    """Refuse a host name that cannot be resolved; torch would retry for minutes."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{platform.node()} cannot resolve {host!r}, the host name of rank 0 ({error}). "
            "Set MASTER_ADDR to an address of rank 0 that all ranks can reach."
        ) from None


def _meet(here: Place) -> Store:
    """The store, once all ranks have joined."""
    _check_host(here.host)
    of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _store(here, host=here.rank == 0 and not of_torchrun)
    store.set(f"here/{here.rank}", "")
    keys = [f"here/{rank}" for rank in range(here.size)]
    try:
        store.wait(keys, JOIN)
    except RuntimeError:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise RunError(
            f"Rank {', '.join(missing)} of {here.size} did not connect to "
            f"{here.host}:{here.port} within {JOIN.total_seconds():.0f} s. Start every rank with "
            "the same command, MASTER_ADDR and MASTER_PORT."
        ) from None
    return store


def _differences(found: list[dict[str, Any]]) -> Iterator[str]:
    """The differences from rank 0, as sentences."""
    first = found[0]
    for rank, facts in enumerate(found):
        for name in sorted({*first, *facts}):
            here, there = first.get(name), facts.get(name)
            if here != there:
                yield f"rank {rank} differs in {name}: {there!r}, but {here!r} at rank 0"


def _as_bytes(message: dict[str, Any]) -> Vector:
    return torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)


def _from_bytes(text: Vector) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(text.numpy().tobytes())
    return message
