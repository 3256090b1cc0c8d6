"""Worker processes: how one is started, how messages reach it and come back, and how it ends.

A message is a line of JSON, the header, and the parts that follow it: bytes, whose lengths the
header lists under "parts" if there are any.  So a worker without parts reads and writes JSON lines.

    worker = Worker("package.module")             # runs `main` of the module
    worker.send({"client": 3}, array.tobytes())   # Exited, if the worker has exited
    replies = worker.receive()                    # waits for at least one
    end([worker])

    def main() -> None:                           # in package.module
        parent = Parent()
        for header, parts in parent:              # until the parent closes the pipe, or exits
            parent.send({"answer": len(parts)})
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from wima.core.errors import RunError, UsageError
from wima.core.machine import open_streams

# Started with -c and the parent's path, so that notebooks and scripts without a main guard work.
_START = (
    "import importlib, json, sys; sys.path = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main()"
)
_OURS = ("SIGINT", "SIGHUP", "SIGTERM", "SIGUSR2")  # SLURM sends the last one before the time limit
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_CHUNK = 65536  # bytes; what a pipe holds


class Exited(RunError):  # noqa: N818  (the error is the worker's)
    """A worker exited unexpectedly; the message says how."""


class Message(NamedTuple):
    """What is sent to a worker, and what it replies."""

    header: dict[str, Any]  # JSON values
    parts: Sequence[bytes] = ()


class Worker:
    """A process that runs `main` of a module, as its parent sees it; it exits when the parent does.

    It computes with one thread, and ignores signals that a terminal or a batch system sends to all
    processes of a run: the parent handles them, and may have to finish its work first.
    independent: it has its own session and handles signals itself, with the usual threads.
    descriptors: open files that it inherits.  quiet: discard what it prints.
    """

    def __init__(
        self,
        module: str,
        descriptors: Sequence[int] = (),
        *,
        independent: bool = False,
        quiet: bool = False,
    ) -> None:
        open_streams()
        # If it was closed when Python started, its descriptor may be that of any file by now.
        silent = quiet or sys.__stderr__ is None
        with contextlib.nullcontext() if independent else _blocked(*_OURS), _refused():
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if silent else None,
                pass_fds=descriptors,
                env={**os.environ, **({} if independent else _ONE_THREAD)},
                start_new_session=independent,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self._unread = bytearray()
        self.unanswered = 0  # messages sent to it, less those received from it

    def fileno(self) -> int:
        """The descriptor to wait on: selectors take a worker as it is."""
        return self._output.fileno()

    def send(self, header: dict[str, Any], *parts: bytes) -> None:
        """Send a message; raises `Exited`."""
        self.unanswered += 1
        try:
            _write(self._input, header, parts)
        except BrokenPipeError:
            raise Exited(self.exit_message()) from None

    def receive(self) -> list[Message]:
        """The messages that have arrived; waits for one if there are none; raises `Exited`."""
        while not (messages := list(self._complete())):
            # Bypass Python's own buffer: a message waiting there would not wake a selector.
            data = os.read(self._output.fileno(), _CHUNK)
            if not data:
                raise Exited(self.exit_message())
            self._unread += data
        self.unanswered -= len(messages)
        return messages

    def _complete(self) -> Iterator[Message]:
        """Take the complete messages out of what was read."""
        while (newline := self._unread.find(b"\n")) >= 0:
            header = json.loads(self._unread[:newline])
            sizes, start = header.pop("parts", ()), newline + 1
            if start + sum(sizes) > len(self._unread):
                return  # before any copy: large parts arrive in many pieces
            parts = []
            for size in sizes:
                parts.append(bytes(self._unread[start : start + size]))
                start += size
            del self._unread[:start]
            yield Message(header, parts)

    def exit_message(self) -> str:
        """How the process exited; waits until it does."""
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"A worker process (pid {self.process.pid}) {how}."


def end(workers: Iterable[Worker], patience: float | None = 10.0) -> None:
    """Close the workers' inputs, on which they exit, and wait.

    Workers that take longer than `patience` seconds, or 1 s if they owe an answer, are killed;
    None: wait until they exit.
    """
    workers = list(workers)
    for worker in workers:
        with contextlib.suppress(BrokenPipeError):  # it has exited with a message unread
            worker._input.close()
    for worker in workers:
        limit = 1.0 if worker.unanswered and patience is not None else patience
        try:
            worker.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker._output.close()


class Parent:
    """The worker's side: an iterator of the parent's messages, until the parent ends them or exits.

    What the worker prints goes to standard error from now on: it must not look like a reply.
    """

    def __init__(self) -> None:
        self._inbox, self._outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        line = self._inbox.readline()
        if not line.endswith(b"\n"):
            raise StopIteration
        header = json.loads(line)
        sizes = header.pop("parts", ())
        parts = [self._inbox.read(size) for size in sizes]
        if any(len(part) < size for part, size in zip(parts, sizes, strict=True)):
            raise StopIteration  # the parent exited while it was writing
        return Message(header, parts)

    def send(self, header: dict[str, Any], *parts: bytes) -> None:
        """Send a message; raises `BrokenPipeError` if the parent has exited."""
        _write(self._outbox, header, parts)


def _write(file: BinaryIO | Any, header: dict[str, Any], parts: Sequence[bytes]) -> None:
    if parts:
        header = {**header, "parts": [len(part) for part in parts]}
    file.write(json.dumps(header).encode() + b"\n")
    for part in parts:
        file.write(part)
    file.flush()


def pickled(what: Any, refused: str) -> bytes:
    """The bytes of an object for a worker.  refused: the error if pickling fails, {} is why."""
    try:
        return cloudpickle.dumps(what)  # type: ignore[no-any-return]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(refused.format(error)) from error


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Say in a sentence why the system starts no process."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"A worker process cannot be started: {error.strerror}. A higher limit (`ulimit -a` "
            "shows them), fewer workers or engine 'serial' may help."
        ) from error


@contextlib.contextmanager
def _blocked(*names: str) -> Iterator[None]:
    """Hold signals back until the end of the block; processes started in it never get them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.Signals[name] for name in names])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
