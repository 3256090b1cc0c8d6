"""The pool of processes: this one and persistent children with one thread each and shared memory.

On a CPU, one process per core with one thread each beats one process with all threads.  Results do
not depend on the number of processes, or on which one does a job.  A job is a client's local
problem, or a batch of examples on which models are evaluated.
"""

from __future__ import annotations

import os
import selectors
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from wima.core.errors import RunError, check
from wima.core.vector import Vector
from wima.simulation.engines.base import Setup, located
from wima.simulation.engines.shared import (
    Handle,
    Shared,
    SlotHandles,
    Slots,
    allocate,
    keep_freed_memory,
)
from wima.simulation.engines.worker import Briefing, Child, Exited, end, pickled
from wima.simulation.local import Problem, Solution, Solver
from wima.simulation.measures.evaluation import Evaluation
from wima.simulation.measures.job import EvaluationJob as Exam
from wima.simulation.round import Pool

Result = TypeVar("Result")
_ATTEMPTS = 3  # workers that exit at the same job before the run fails
_REFUSED = "engine 'processes' cannot send this model to its workers ({}); use engine 'serial'."
_AHEAD = 2  # jobs sent to a child before it answers, so that it never waits


class Train(NamedTuple):
    """A job: the local problem at this place in the cohort."""

    place: int
    problem: Problem


class Score(NamedTuple):
    """A job: a piece of an exam."""

    piece: int
    exam: Exam
    models: int


class Processes(Pool):
    """Solves problems and evaluates models in this process and in children."""

    runs_ahead = can_examine = True

    def __init__(self, setup: Setup, w: Vector, workers: int, models: int = 1) -> None:
        check(os.name == "posix", "engine 'processes' needs Linux or macOS; use engine 'serial'.")
        check(
            w.device.type == "cpu",
            f"engine 'processes' works on the CPU, but the task is on {w.device}; "
            "use 'batched' or 'serial'.",
        )
        self._setup, self._solver = setup, Solver(setup.task, setup.sgd, setup.seed)
        self._training: deque[Train] = deque()  # largest first; children take them from the left
        self._solved: dict[int, Solution | RunError] = {}  # by place
        self._scoring: deque[Score] = deque()
        self._scored: dict[int, list[Any] | RunError] = {}  # by piece
        self._begun: list[Problem] | None = None
        self._sent: dict[int, Train | Score] = {}  # by slot
        self._children: list[Child] = []
        self._exits: dict[str, int] = {}  # of workers, by what they were doing
        self._size = workers - 1
        shared = Shared()
        self._close = weakref.finalize(self, _end, self._children, shared)
        keep_freed_memory()
        try:
            slots = _AHEAD * self._size  # for jobs sent to children and not yet answered
            handles = allocate(shared, slots, models, w, setup)
            self._slots, self._free = Slots(handles), list(range(slots))
            self._briefing = pickled(_brief(setup, shared, handles), _REFUSED)
            self._shared = shared
            self._start()
        except BaseException:
            self._close()
            raise

    def _start(self) -> None:
        """Start the missing children."""
        while missing := self._size - len(self._children):
            fresh = [Child(self._shared.descriptors) for _ in range(missing)]
            self._children += fresh
            for child in fresh:
                try:
                    child.brief(self._briefing)
                except Exited as death:
                    self._remove(child, "start of a worker", death)

    def _replace(self, child: Child, death: Exited) -> None:
        """Take back the jobs of a child that exited, and start another child."""
        jobs = [self._sent.pop(slot) for slot in child.slots]
        self._free += child.slots
        self._remove(child, _where(jobs[0]) if jobs else "between jobs", death)
        for job in reversed(jobs):
            (self._training if isinstance(job, Train) else self._scoring).appendleft(job)  # type: ignore[arg-type]
        self._start()

    def _remove(self, child: Child, where: str, death: Exited) -> None:
        """Count a worker that exited; too many at the same job end the run."""
        self._children.remove(child)
        end([child])
        self._exits[where] = self._exits.get(where, 0) + 1
        if self._exits[where] >= _ATTEMPTS:
            raise RunError(
                f"{where}: {death} {_ATTEMPTS} workers have exited here. If memory ran out, fewer "
                "workers or a smaller batch may help."
            )

    def close(self) -> None:
        self._close()

    def begin(self, problems: list[Problem]) -> None:
        """Let children start on the problems of the next `solve`."""
        self._begun = problems
        self._solved.clear()
        self._slots.w.copy_(problems[0].w)
        size = self._setup.task.data.size
        jobs = [Train(place, problem) for place, problem in enumerate(problems)]
        jobs.sort(key=lambda job: -size(job.problem.client))  # no large job is left for the end
        self._training = deque(jobs)
        self._feed()

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]:
        """Solutions in the order of the problems, as soon as they are ready."""
        if problems is not self._begun:
            self.begin(problems)
        self._begun = None
        for place, problem in enumerate(problems):
            while place not in self._solved:
                self._work()
            yield problem, _good(self._solved.pop(place))

    def examine(self, exam: Exam, models: list[Vector]) -> list[Any]:
        """All models at once, piece by piece; before any training."""
        for row, w in zip(self._slots.models, models, strict=True):
            row.copy_(w)
        self._scored.clear()
        self._scoring = deque(Score(piece, exam, len(models)) for piece in exam.pieces)
        while len(self._scored) < len(exam.pieces):
            self._work()
        return [_good(self._scored[piece]) for piece in exam.pieces]

    def _work(self) -> None:
        """Feed the children, then take their answers, do a job here, or wait for an answer."""
        self._feed()
        queue = self._scoring or self._training
        if self._receive(wait=not queue) or not queue:
            return
        self._do(queue.pop())  # the smallest: children must not wait for this process

    def _feed(self) -> None:
        for room in range(1, _AHEAD + 1):
            for child in list(self._children):
                if child not in self._children:
                    continue  # it has exited
                queue = self._scoring or self._training
                # A child gets a second job only while one is left for each process.
                least = 0 if room == 1 else len(self._children)
                if len(queue) > least and len(child.slots) < room:
                    self._send(child, queue.popleft())

    def _send(self, child: Child, job: Train | Score) -> None:
        slot = self._free.pop()
        self._sent[slot] = job
        if isinstance(job, Train):
            message = self._slots.put(slot, job.problem)
        else:
            about = {"piece": job.piece, "exam": job.exam.fields(), "models": job.models}
            message = {"slot": slot, **about}
        try:
            child.send(message)
        except Exited as death:
            self._replace(child, death)

    def _receive(self, wait: bool) -> bool:
        """Take the children's answers; return whether there were any."""
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                assert child.process.stdout is not None
                selector.register(child.process.stdout, selectors.EVENT_READ, child)
            ready = selector.select(None if wait else 0)
        for key, _ in ready:
            try:
                answers = key.data.receive()
            except Exited as death:
                self._replace(key.data, death)
            else:
                for answer in answers:
                    self._take(answer)
        return bool(ready)

    def _take(self, answer: dict[str, Any]) -> None:
        slot = answer["slot"]
        job = self._sent.pop(slot)
        error = _error(job, answer) if "error" in answer else None
        if isinstance(job, Score):
            self._scored[job.piece] = error or answer["scores"]
        else:
            solution = error or self._slots.get_solution(slot, job.problem, answer["steps"])
            self._solved[job.place] = solution
        self._free.append(slot)

    def _do(self, job: Train | Score) -> None:
        """Do a job in this process."""
        if isinstance(job, Score):
            models = list(self._slots.models[: job.models])
            self._scored[job.piece] = job.exam.answer(self._solver, job.piece, models)
            return
        try:
            with located(job.problem.t, "local training", job.problem.client):
                self._solved[job.place] = self._solver.solve(job.problem)
        except RunError as error:  # raised when the round needs this solution
            self._solved[job.place] = error


def _brief(setup: Setup, shared: Shared, handles: SlotHandles) -> Briefing:
    """The first message to workers; arrays are shared, not sent."""
    data, evaluate = setup.task.data, setup.task.evaluate
    x, y, offsets = (shared.share(array) for array in (data.x, data.y, data.offsets))
    arrays: list[Handle | None] = [None, None]
    task = setup.task._replace(data=None, init=None, evaluate=None)  # type: ignore[arg-type]
    if isinstance(evaluate, Evaluation):
        arrays = [shared.share(part.numpy()) for part in (evaluate.x, evaluate.y)]
        task = task._replace(evaluate=evaluate.without_examples())
    return Briefing(task, setup.sgd, setup.seed, x, y, offsets, handles, *arrays)


def _error(job: Train | Score, answer: dict[str, Any]) -> RunError:
    """The error that a child reports, with the address of the job."""
    error = RunError(f"{_where(job)}: {answer['error']}")
    error.add_note(answer["traceback"])
    return error


def _where(job: Train | Score) -> str:
    if isinstance(job, Score):
        return f"{'fine-tuning, client' if job.exam.finetune else 'evaluation, batch'} {job.piece}"
    return f"round {job.problem.t}, client {job.problem.client}, local training"


def _end(children: list[Child], shared: Shared) -> None:
    end(children)
    shared.close()


def _good(result: Result | RunError) -> Result:
    """The result, unless it is an error."""
    if isinstance(result, RunError):
        raise result
    return result
