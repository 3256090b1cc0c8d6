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
from wima.engine.shared import Handle, Shared
from wima.engine.slots import SlotHandles, Slots, allocate
from wima.engine.worker import Briefing
from wima.errors import RunError, UsageError, check
from wima.evaluation import Evaluation, Metrics
from wima.vector import Vector

# Started with -c and the parent's path, so that notebooks and scripts without a main guard work.
_START = (
    "import json, sys; sys.path = json.loads(sys.argv[1]); import wima.engine.worker as w; w.main()"
)
# One thread; and keep freed memory: glibc hands it back and faults it in again at every step.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
_AHEAD = 2  # problems a worker is sent before it answers, so that it never waits


class Worker:
    """One child process and the problems it was sent."""

    def __init__(self, briefing: bytes, descriptors: list[int]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, **_ENVIRONMENT},
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
    """Solves problems and evaluates models in child processes."""

    def __init__(self, setup: Setup, w: Vector, workers: int, slots: int, models: int = 1) -> None:
        check(os.name == "posix", "engine 'processes' needs Linux or macOS; use engine 'serial'.")
        shared = Shared()
        self._workers: list[Worker] = []
        self._close = weakref.finalize(self, _end, self._workers, shared)
        try:
            handles = allocate(shared, slots, models, w, len(w[: setup.trained]))
            self._slots, self._sizes = Slots(handles), setup.task.data.sizes
            self._start(_dumps(_brief(setup, shared, handles)), workers, shared)
        except BaseException:
            self._close()
            raise
        evaluate = setup.task.evaluate
        self._evaluation = evaluate if isinstance(evaluate, Evaluation) else None

    @property
    def can_evaluate(self) -> bool:
        """Whether workers can evaluate: a task of plain functions is evaluated by its owner."""
        return self._evaluation is not None

    def _start(self, briefing: bytes, workers: int, shared: Shared) -> None:
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
        t = listed[0].t
        names = [f"round {t}, client {problem.client}, local training" for problem in listed]
        answers = self._gather(deque(messages), names)
        for slot, problem in enumerate(listed):
            yield problem, self._slots.get_solution(slot, problem, answers[slot]["steps"])

    def evaluate(self, models: dict[str, Vector]) -> dict[str, Metrics]:
        """All models in one pass over the examples, in pieces."""
        assert self._evaluation is not None
        for row, w in zip(self._slots.models, models.values(), strict=True):
            row.copy_(w)
        pieces = range(self._evaluation.pieces)
        messages = deque({"slot": k, "piece": k, "models": len(models)} for k in pieces)
        answers = self._gather(messages, [f"evaluation, batch {k}" for k in pieces])
        results = self._evaluation.combine([answers[k]["scores"] for k in pieces])
        return dict(zip(models, results, strict=True))

    def _gather(self, queue: deque[dict[str, Any]], names: list[str]) -> dict[int, dict[str, Any]]:
        """Hand out all messages, take in all answers by slot; names tell where an error was."""
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            self._feed(queue)
            while len(answers) < len(names):
                for key, _ in selector.select():
                    for answer in key.data.receive():
                        answers[answer["slot"]] = _good(answer, names)
                    self._feed(queue)
        return answers

    def _feed(self, queue: deque[dict[str, Any]]) -> None:
        for room in range(1, _AHEAD + 1):
            for worker in self._workers:
                if queue and len(worker.slots) < room:
                    worker.send(queue.popleft())


def _brief(setup: Setup, shared: Shared, handles: SlotHandles) -> Briefing:
    """What workers are told; arrays are shared, not sent."""
    data, evaluate = setup.task.data, setup.task.evaluate
    x, y, offsets = (shared.share(array) for array in (data.x, data.y, data.offsets))
    arrays: list[Handle | None] = [None, None]
    task = setup.task._replace(data=None, init=None, evaluate=None)  # type: ignore[arg-type]
    if isinstance(evaluate, Evaluation):
        arrays = [shared.share(part.numpy()) for part in (evaluate.x, evaluate.y)]
        task = task._replace(evaluate=evaluate.without_examples())
    return Briefing(task, setup.sgd, setup.seed, x, y, offsets, handles, *arrays)


def _good(answer: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The answer, unless it reports an error."""
    if "error" not in answer:
        return answer
    error = RunError(f"{names[answer['slot']]}: {answer['error']}")
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
