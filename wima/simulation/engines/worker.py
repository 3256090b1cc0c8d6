"""A worker process of a pool: what it runs, and its parent's side."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch

from wima.core.errors import RunError, UsageError
from wima.data.batches import LocalSGD
from wima.data.federated import FederatedData
from wima.simulation.engines.shared import Handle, SlotHandles, Slots, keep_freed_memory
from wima.simulation.local import Solver
from wima.simulation.measures.evaluation import Evaluation
from wima.simulation.measures.job import job_of as exam_of
from wima.simulation.task import Task

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
        self.process = launch("wima.simulation.engines.worker", descriptors)
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


class Briefing(NamedTuple):
    """The first message to a worker."""

    task: Task  # without its data
    sgd: LocalSGD
    seed: int
    x: Handle
    y: Handle
    offsets: Handle
    slots: SlotHandles
    x_test: Handle | None = None  # if given, `task.evaluate` has no examples
    y_test: Handle | None = None


def main() -> None:
    """Serve until standard input closes, which happens however the parent exits."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the model must not look like an answer
    size = int.from_bytes(inbox.read(8), "little")
    briefing = pickle.loads(inbox.read(size))
    data = FederatedData(*(h.open() for h in (briefing.x, briefing.y, briefing.offsets)))
    task = briefing.task._replace(data=data)
    evaluation = task.evaluate
    if isinstance(evaluation, Evaluation) and briefing.x_test and briefing.y_test:
        evaluation.x = torch.from_numpy(briefing.x_test.open())
        evaluation.y = torch.from_numpy(briefing.y_test.open())
    solver, slots = Solver(task, briefing.sgd, briefing.seed), Slots(briefing.slots)
    _send(outbox, {"ready": os.getpid()})
    for line in inbox:
        _send(outbox, _answer(solver, slots, json.loads(line)))


def _answer(solver: Solver, slots: Slots, message: dict[str, Any]) -> dict[str, Any]:
    slot = message["slot"]
    try:
        if "exam" in message:
            models = list(slots.models[: message["models"]])
            answer = exam_of(message["exam"]).answer(solver, message["piece"], models)
            return {"slot": slot, "scores": answer}
        solution = solver.solve(slots.get(message))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"slot": slot, "error": reason, "traceback": traceback.format_exc()}
    slots.put_solution(slot, solution)
    return {"slot": slot, "steps": solution.steps}


def _send(outbox: BinaryIO, message: dict[str, Any]) -> None:
    outbox.write(json.dumps(message).encode() + b"\n")
    outbox.flush()
