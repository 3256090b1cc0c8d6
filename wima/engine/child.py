"""A child process of the pool, from its parent's side."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from wima.core.errors import RunError, UsageError

# Started with -c and the parent's path, so that notebooks and scripts without a main guard work.
_START = (
    "import importlib, json, sys; sys.path = json.loads(sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main()"
)
_OURS = ("SIGINT", "SIGHUP", "SIGTERM", "SIGUSR2")  # SLURM sends the last one before the time limit
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Exited(RunError):  # noqa: N818  (the error is the child's)
    """A child exited unexpectedly; the message says how."""


def launch(module: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a process that runs `main` of the module, with one thread and pipes to this process.

    It exits when its input closes.  It ignores signals that a terminal or a batch system sends to
    all processes of a run: this process handles them, and may have to finish its work first.
    """
    with _blocked(*_OURS):
        return subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, **_ENVIRONMENT},
        )


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


def exit_message(process: subprocess.Popen[bytes]) -> str:
    """How a process exited; waits until it does."""
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"A worker process (pid {process.pid}) {how}."


def pickled(what: Any, refused: str) -> bytes:
    """The bytes sent to a worker once.  refused: the error if pickling fails, {} is the reason."""
    try:
        return cloudpickle.dumps(what)  # type: ignore[no-any-return]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(refused.format(error)) from error


class Child:
    """One process and the slots of the jobs sent to it."""

    def __init__(self, descriptors: list[int]) -> None:
        self.process = launch("wima.engine.worker", descriptors)
        self.slots: deque[int] = deque()  # in the order of the answers to come
        self._unread = b""

    def brief(self, briefing: bytes) -> None:
        """Send the briefing and wait until the child is ready."""
        self._write(len(briefing).to_bytes(8, "little") + briefing)
        self.receive()

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Exited(exit_message(self.process)) from None

    def send(self, message: dict[str, Any]) -> None:
        self.slots.append(message["slot"])
        self._write(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The answers that have arrived; waits for one if there are none."""
        assert self.process.stdout is not None
        # Bypass Python's own buffer: a line waiting there would not wake the selector.
        while b"\n" not in self._unread:
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise Exited(exit_message(self.process))
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        answers = [json.loads(line) for line in lines]
        for _ in answers[: len(self.slots)]:
            self.slots.popleft()
        return answers


def end(children: Sequence[Child]) -> None:
    """Close the children's inputs, which ends them; kill those that do not exit."""
    for child in children:
        if child.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.process.stdin.close()
    for child in children:
        try:
            child.process.wait(timeout=10 if not child.slots else 1)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        if child.process.stdout is not None:
            child.process.stdout.close()
