"""The processes of a distributed run: which rank this is, how ranks connect and send vectors."""

from __future__ import annotations

import atexit
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)

from wima.core.errors import RunError, UsageError, check
from wima.core.text import echo
from wima.core.vector import Vector
from wima.core.version import __version__

_COMMAND = (
    "engine 'distributed' needs torchrun or srun, and neither started this process. Run\n"
    "  torchrun --nproc-per-node 2 -m wima run ... engine=distributed\n"
    "or use engine 'processes', which starts its workers itself."
)
_TORCHRUN = {
    "rank": ("RANK",),
    "size": ("WORLD_SIZE",),
    "host": ("MASTER_ADDR",),
    "port": ("MASTER_PORT",),
    "local": ("LOCAL_RANK",),
}
_SRUN = {
    "rank": ("SLURM_PROCID",),
    "size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "host": ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    "port": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "local": ("SLURM_LOCALID",),
}
_PORTS = range(12_000, 32_000)  # for SLURM jobs; higher ports are assigned by the system


class Place(NamedTuple):
    """A rank, the number of ranks, and the address of rank 0."""

    rank: int
    size: int
    host: str
    port: int
    local: int = 0  # its rank on its machine


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; torchrun's variables take precedence over SLURM's."""

    def found(names: Mapping[str, tuple[str, ...]], part: str) -> str | None:
        return next((environment[name] for name in names[part] if environment.get(name)), None)

    names = _TORCHRUN if found(_TORCHRUN, "rank") else _SRUN
    rank, size = found(names, "rank"), found(names, "size")
    if rank is None or size is None:
        raise UsageError(_COMMAND)
    host, port = found(_TORCHRUN, "host"), found(_TORCHRUN, "port")
    nodes, job = found(_SRUN, "host"), found(_SRUN, "port")
    host = host or (first_host(nodes) if nodes else None)
    check(host is not None, "MASTER_ADDR must name the machine of rank 0, but is not set.")
    check(bool(port or job), "MASTER_PORT must be a free port on rank 0's host, but is not set.")
    number = _number("MASTER_PORT", port) if port else _port_of(job or "")
    local = found(names, "local")
    here = Place(
        _number(names["rank"][0], rank),
        _number(names["size"][0], size),
        host or "",
        number,
        _number(names["local"][0], local) if local else 0,
    )
    check(here.rank < here.size, f"RANK must be less than WORLD_SIZE {here.size}, got {here.rank}.")
    return here


def first_host(nodes: str) -> str:
    """The first name in a SLURM node list: `n03` for `n[03-10,12],m1`."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    check(found is not None, f"Expected a SLURM node list, got {nodes!r}.")
    return "".join(part or "" for part in found.groups()) if found else ""


def _port_of(job: str) -> int:
    """A port that all ranks of a job can compute without communication."""
    return _PORTS[_number("SLURM_JOB_ID", job) % len(_PORTS)]


def _number(name: str, text: str) -> int:
    check(text.isdecimal(), f"{name} must be a whole number, got {text!r}.")
    return int(text)


BEAT = 0.25  # seconds between two numbers
SILENCE = 15.0  # seconds after which a rank counts as lost
PATIENCE = 300.0  # the same before the first round: reading data can block a process for long
GRACE = 8.0  # seconds that the run has to end by itself when a rank is lost
NAMING = 2.0  # seconds of silence that show which rank closed its connections
FAREWELL = 2.0  # seconds that rank 0 waits for the others before it exits
LEFT = b"left"


class Pulse:
    """A thread that shows that this rank is alive, and watches the others."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._key = store, rank, f"pulse/{rank}"
        self._others = range(1, size) if rank == 0 else [0]
        self._heard = dict.fromkeys(self._others, b"")  # the newest number
        # Counted, not timed: if all ranks are paused together, none of them counts as lost.
        self._missed = dict.fromkeys(self._others, 0)  # own beats since
        self._stop = threading.Event()
        self.needed = True  # whether this process cannot continue without the others
        self.silence = PATIENCE
        self.lost: str | None = None  # which rank, and how
        self._lost: set[int] = set()
        store.set(self._key, "0")
        self._thread = threading.Thread(target=self._run, name="wima-pulse", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if a rank was lost."""
        if self.lost is not None:
            raise RunError(self.lost)

    def reason(self, error: Exception) -> str:
        """The rank that caused a connection error, as a sentence."""
        limit = time.monotonic() + 4 * NAMING
        while self.lost is None and time.monotonic() < limit:
            time.sleep(BEAT / 5)
            rank = max(self._missed, key=self._missed.__getitem__, default=0)
            if self._missed.get(rank, 0) > NAMING / BEAT:
                self._lose(rank, "exited or can no longer be reached")
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return self.lost or f"The connection between the ranks failed: {text}"

    def stop(self, left: bool = False) -> None:
        """Stop the thread; left: tell the others that this rank has left."""
        self._stop.set()
        self._thread.join(timeout=2 * BEAT)
        if left:
            self._say_left()
            if self._rank == 0:
                self._wait_for_others()

    def _say_left(self) -> None:
        with suppress(RuntimeError):
            self._store.set(self._key, LEFT.decode())

    def _wait_for_others(self) -> None:
        """Give the others time to see that rank 0 has left: the store may be in this process."""
        limit = time.monotonic() + FAREWELL
        with suppress(RuntimeError):
            while time.monotonic() < limit and any(
                self._store.get(f"pulse/{other}") != LEFT
                for other in self._others
                if other not in self._lost
            ):
                time.sleep(BEAT / 10)

    def _run(self) -> None:
        beats, since = 0, 0.0
        while not self._stop.wait(BEAT):
            beats += 1
            try:
                self._store.set(self._key, str(beats))
                self._listen()
            except RuntimeError:  # the store is in rank 0's process or torchrun's
                if self._rank == 0:
                    self.lost = self.lost or "torchrun has exited, so the run cannot continue."
                self._lose(0, "exited or can no longer be reached")
            if self.lost is None:
                continue
            since = since or time.monotonic()
            # Rank 0 has a run to close; the others have nothing to save.
            if time.monotonic() - since >= (GRACE if self._rank == 0 else 0):
                self._end()
                return

    def _listen(self) -> None:
        for other in self._others:
            beat, before = self._store.get(f"pulse/{other}"), self._heard[other]
            self._heard[other] = beat
            self._missed[other] = 0 if beat != before else self._missed[other] + 1
            if beat == LEFT:
                self._lose(other, "has left the run")
            elif self._missed[other] > self.silence / BEAT:
                self._lose(other, f"has been silent for {self.silence:.0f} s")

    def _lose(self, rank: int, how: str) -> None:
        self._lost.add(rank)
        self.lost = self.lost or _sentence(rank, how)

    def _end(self) -> None:
        """Exit a process whose main thread may wait forever."""
        if self._stop.is_set():
            return
        self._say_left()
        if not self.needed:
            return
        echo(f"Error: {self.lost}", sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def _sentence(rank: int, how: str) -> str:
    return f"Rank {rank} {how}, so the run cannot continue; see the output of rank {rank}."


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
