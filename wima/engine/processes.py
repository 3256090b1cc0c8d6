"""The pool of worker processes: persistent, one thread each, vectors and data in shared memory.

On a CPU, one process per core with one thread each beats one process with all threads.  Which
worker solves a problem does not matter for its solution, nor does their number.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from wima.engine.base import Setup
from wima.engine.local import Problem, Solution
from wima.engine.shared import Shared
from wima.engine.slots import Slots, allocate
from wima.engine.worker import Briefing
from wima.errors import RunError, UsageError, check
from wima.vector import Vector

# Started with -c and the parent's path, so that notebooks and scripts without a main guard work.
_START = (
    "import json, sys; sys.path = json.loads(sys.argv[1]); import wima.engine.worker as w; w.main()"
)
_AHEAD = 2  # problems a worker is sent before it answers, so that it never waits


class Worker:
    """One child process and the problems it was sent."""

    def __init__(self, briefing: bytes, descriptors: list[int]) -> None:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, **threads},
        )
        self.slots: deque[int] = deque()  # in the order in which answers will come
        self._unread = b""
        self._write(len(briefing).to_bytes(8, "little") + briefing)

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RunError(self._obituary()) from None

    def send(self, message: dict[str, Any]) -> None:
        self.slots.append(message["slot"])
        self._write(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The answers that have come; waits for one if there is none."""
        assert self.process.stdout is not None
        # Read past Python's own buffer: a line that waits there would not wake the selector.
        while b"\n" not in self._unread:
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise RunError(self._obituary())
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        answers = [json.loads(line) for line in lines]
        for _ in answers[: len(self.slots)]:
            self.slots.popleft()
        return answers

    def _obituary(self) -> str:
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"A worker process (pid {self.process.pid}) {how}."


class Processes:
    """Solves problems in child processes."""

    def __init__(self, setup: Setup, w: Vector, workers: int, slots: int) -> None:
        check(os.name == "posix", "engine 'processes' needs Linux or macOS; use engine 'serial'.")
        shared = Shared()
        self._workers: list[Worker] = []
        self._close = weakref.finalize(self, _end, self._workers, shared)
        try:
            self._start(setup, w, workers, slots, shared)
        except BaseException:
            self._close()
            raise

    def _start(self, setup: Setup, w: Vector, workers: int, slots: int, shared: Shared) -> None:
        handles = allocate(shared, slots, w, len(w[: setup.trained]))
        data = setup.task.data
        x, y, offsets = (shared.share(array) for array in (data.x, data.y, data.offsets))
        task = setup.task._replace(data=None, evaluate=None, init=None)  # type: ignore[arg-type]
        briefing = _dumps(Briefing(task, setup.sgd, setup.seed, x, y, offsets, handles))
        self._slots, self._sizes = Slots(handles), data.sizes
        for _ in range(workers):
            self._workers.append(Worker(briefing, shared.descriptors))
        for worker in self._workers:
            worker.receive()  # ready

    def close(self) -> None:
        self._close()

    def solve(self, problems: Iterable[Problem]) -> Iterator[tuple[Problem, Solution]]:
        listed = list(problems)
        if not listed:
            return
        self._slots.w.copy_(listed[0].w)
        messages = [self._slots.put(slot, problem) for slot, problem in enumerate(listed)]
        messages.sort(key=lambda m: -self._sizes[m["client"]])  # largest first: no late straggler
        steps = self._gather(deque(messages), listed)
        for slot, problem in enumerate(listed):
            yield problem, self._slots.get_solution(slot, problem, steps[slot])

    def _gather(self, queue: deque[dict[str, Any]], problems: list[Problem]) -> dict[int, int]:
        """Hand out all messages, take in all answers: slot -> steps taken."""
        steps: dict[int, int] = {}
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            self._feed(queue)
            while len(steps) < len(problems):
                for key, _ in selector.select():
                    for answer in key.data.receive():
                        steps[answer["slot"]] = _steps(answer, problems)
                    self._feed(queue)
        return steps

    def _feed(self, queue: deque[dict[str, Any]]) -> None:
        for room in range(1, _AHEAD + 1):
            for worker in self._workers:
                if queue and len(worker.slots) < room:
                    worker.send(queue.popleft())


def _steps(answer: dict[str, Any], problems: list[Problem]) -> int:
    """The steps that an answer reports, or the error that it reports."""
    if "error" not in answer:
        return int(answer["steps"])
    problem = problems[answer["slot"]]
    where = f"round {problem.t}, client {problem.client}, local training"
    error = RunError(f"{where}: {answer['error']}")
    error.add_note(answer["traceback"])
    raise error


def _dumps(briefing: Briefing) -> bytes:
    try:
        return cloudpickle.dumps(briefing)  # type: ignore[no-any-return]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"engine 'processes' cannot send this model to its workers ({error}); "
            "use engine 'serial'."
        ) from error


def _end(workers: list[Worker], shared: Shared) -> None:
    """Close the workers' inputs, which ends them; kill what does not end."""
    for worker in workers:
        if worker.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()
    for worker in workers:
        try:
            worker.process.wait(timeout=10 if not worker.slots else 1)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        if worker.process.stdout is not None:
            worker.process.stdout.close()
    shared.close()
