"""Engine `processes`: this process and persistent workers with one thread each and shared memory.

On a CPU, one process per core with one thread each beats one process with all threads.  Results do
not depend on the number of processes, or on which one does a job.  A job is a client's local
problem, or a batch of examples on which models are evaluated.
"""

import os
import pickle
import selectors
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch

from wima.core.errors import RunError, check
from wima.core.machine import keep_freed_memory
from wima.core.vector import Vector
from wima.core.workers import Exited, Parent, Worker, end, pickled
from wima.data.federated import FederatedData
from wima.simulation.engines.shared import Handle, Shared, Slots, allocate
from wima.simulation.local import Problem, Solved, Solver
from wima.simulation.measures.base import Evaluation
from wima.simulation.measures.job import EvaluationJob, job_of
from wima.simulation.options import LocalSGD
from wima.simulation.round import Engine, Setup
from wima.simulation.task import Task

_ATTEMPTS = 3  # workers that exit at the same job before the run fails
_REFUSED = "engine 'processes' cannot send this model to its workers ({}); use engine 'serial'."
_AHEAD = 2  # jobs sent to a worker before it answers, so that it never waits


class Job(NamedTuple):
    """The local problem at this position in the cohort, or this piece of an evaluation."""

    number: int
    work: Problem | EvaluationJob

    def __str__(self) -> str:
        if isinstance(self.work, Problem):
            return f"round {self.work.t}, client {self.work.client}, local training"
        kind = "fine-tuning, client" if self.work.finetune else "evaluation, batch"
        return f"{kind} {self.number}"


Result = TypeVar("Result")


class Processes(Engine):
    """Solves problems and evaluates models in this process and in workers."""

    name = "processes"
    runs_ahead = True

    def __init__(self, setup: Setup, w: Vector, workers: int, models: int = 1) -> None:
        """workers: processes, including this one.  models: how many are evaluated at a time."""
        check(os.name == "posix", "engine 'processes' needs Linux or macOS; use engine 'serial'.")
        check(
            w.device.type == "cpu",
            f"engine 'processes' works on the CPU, but the task is on {w.device}; "
            "use 'batched' or 'serial'.",
        )
        super().__init__(setup)
        self._prefetched: list[Problem] | None = None
        self._training: deque[Job] = deque()  # largest first; workers take them from the left
        self._solved: dict[int, Solved | RunError] = {}  # by position
        self._scoring: deque[Job] = deque()
        self._scored: dict[int, list[Any] | RunError] = {}  # by piece
        self._models: list[Vector] = []  # that are scored
        self._sent: dict[int, Job] = {}  # by slot
        self._workers: dict[Worker, deque[int]] = {}  # the slots of its jobs, oldest first
        self._exits: dict[str, int] = {}  # of workers, by what they were doing
        self._size = workers - 1
        shared = Shared()
        # A worker ends when its input closes, even if nobody calls `close`.
        self._close = weakref.finalize(self, _end, self._workers, shared)
        keep_freed_memory()
        try:
            slots = _AHEAD * self._size  # for jobs sent to workers and not yet answered
            handles = allocate(shared, slots, models, w, setup)
            self._slots, self._free = Slots(handles), list(range(slots))
            self._first_message = pickled(_worker_setup(setup, shared, handles), _REFUSED)
            self._descriptors = shared.descriptors
            self._start()
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        self._close()

    def prefetch(self, problems: list[Problem]) -> None:
        """Let workers start on the problems of the next `solve`."""
        self._prefetched = problems
        self._solved.clear()
        self._slots.rows["w"].copy_(problems[0].w)
        size = self.setup.task.data.size  # no large job is left for the end
        jobs = sorted(enumerate(problems), key=lambda job: -size(job[1].client))
        self._training = deque(Job(*job) for job in jobs)
        self._feed()

    def solve(self, problems: list[Problem]) -> Iterator[Solved]:
        """Visits in the order of the problems, as soon as they are ready."""
        if problems is not self._prefetched:
            self.prefetch(problems)
        self._prefetched = None
        for position in range(len(problems)):
            while position not in self._solved:
                self._work()
            yield _good(self._solved.pop(position))

    def evaluate(self, evaluation: EvaluationJob, models: list[Vector]) -> list[Any]:
        """All models at once, piece by piece; before any training."""
        self._models = list(self._slots.rows["models"][: len(models)])
        for row, w in zip(self._models, models, strict=True):
            row.copy_(w)
        self._scored.clear()
        self._scoring = deque(Job(piece, evaluation) for piece in evaluation.pieces)
        while len(self._scored) < len(evaluation.pieces):
            self._work()
        return [_good(self._scored[piece]) for piece in evaluation.pieces]

    def _work(self) -> None:
        """Feed the workers, then take their replies, do a job here, or wait for a reply."""
        self._feed()
        queue = self._scoring or self._training
        if self._receive(wait=not queue) or not queue:
            return
        self._do(queue.pop())  # the smallest: workers must not wait for this process

    def _feed(self) -> None:
        for room in range(1, _AHEAD + 1):
            for worker in list(self._workers):
                slots = self._workers.get(worker)
                if slots is None:
                    continue  # it has exited
                queue = self._scoring or self._training
                # A worker gets a second job only while one is left for each process.
                least = 0 if room == 1 else len(self._workers)
                if len(queue) > least and len(slots) < room:
                    self._send(worker, queue.popleft())

    def _send(self, worker: Worker, job: Job) -> None:
        slot = self._free.pop()
        self._sent[slot] = job
        self._workers[worker].append(slot)
        if isinstance(job.work, Problem):
            message, vectors = job.work.message()
            self._slots.put(slot, vectors)
        else:
            message = {"piece": job.number, "models": len(self._models)}
            message["evaluation"] = job.work.fields()
        try:
            worker.send({"slot": slot, **message})
        except Exited as death:
            self._replace(worker, death)

    def _receive(self, wait: bool) -> bool:
        """Take the workers' replies; return whether there were any."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker, selectors.EVENT_READ, worker)
            ready = [key.data for key, _ in selector.select(None if wait else 0)]
        for worker in ready:
            try:
                replies = worker.receive()
            except Exited as death:
                self._replace(worker, death)
                continue
            for reply, _ in replies:
                self._workers[worker].popleft()
                self._take(reply)
        return bool(ready)

    def _take(self, reply: dict[str, Any]) -> None:
        slot = reply["slot"]
        job, error = self._sent.pop(slot), None
        if "error" in reply:  # it is raised when the round needs this result
            error = RunError(f"{job}: {reply['error']}")
            error.add_note(reply["traceback"])
        if isinstance(job.work, EvaluationJob):
            self._scored[job.number] = error or reply["scores"]
        elif error is not None:
            self._solved[job.number] = error
        else:
            vectors = self._slots.get(slot, reply["vectors"])
            copies = {name: vector.clone() for name, vector in vectors.items()}
            self._solved[job.number] = job.work.solved(reply["steps"], **copies)
        self._free.append(slot)

    def _do(self, job: Job) -> None:
        """Do a job in this process."""
        if isinstance(job.work, EvaluationJob):
            self._scored[job.number] = job.work.answer(self.solver, job.number, self._models)
            return
        try:
            self._solved[job.number] = self.solve_here(job.work)
        except RunError as error:  # raised when the round needs this visit
            self._solved[job.number] = error

    def _start(self) -> None:
        """Start the missing workers."""
        while missing := self._size - len(self._workers):
            new = [Worker(__name__, self._descriptors) for _ in range(missing)]
            self._workers |= {worker: deque() for worker in new}
            for worker in new:  # they import modules at the same time
                try:
                    worker.send({}, self._first_message)
                    worker.receive()  # it is ready
                except Exited as death:
                    self._remove(worker, "start of a worker", death)

    def _replace(self, worker: Worker, death: Exited) -> None:
        """Take back the jobs of a worker that exited, and start another one."""
        slots = self._workers[worker]
        jobs = [self._sent.pop(slot) for slot in slots]
        self._free += slots
        self._remove(worker, str(jobs[0]) if jobs else "between jobs", death)
        for job in reversed(jobs):
            (self._training if isinstance(job.work, Problem) else self._scoring).appendleft(job)
        self._start()

    def _remove(self, worker: Worker, where: str, death: Exited) -> None:
        """Count a worker that exited; too many at the same job end the run."""
        del self._workers[worker]
        end([worker])
        self._exits[where] = self._exits.get(where, 0) + 1
        if self._exits[where] >= _ATTEMPTS:
            raise RunError(
                f"{where}: {death} {_ATTEMPTS} workers have exited here. If memory ran out, fewer "
                "workers or a smaller batch may help."
            )


def _end(workers: dict[Worker, deque[int]], shared: Shared) -> None:
    end(workers)
    shared.close()


def _good(result: Result | RunError) -> Result:
    """The result, unless it is an error."""
    if isinstance(result, RunError):
        raise result
    return result


class WorkerSetup(NamedTuple):
    """The first message to workers; arrays are shared, not sent."""

    task: Task  # without its examples
    sgd: LocalSGD
    seed: int
    examples: dict[str, Handle]
    slots: dict[str, Handle]


def _worker_setup(setup: Setup, shared: Shared, slots: dict[str, Handle]) -> WorkerSetup:
    data, evaluate = setup.task.data, setup.task.evaluate
    arrays, kept = {"x": data.x, "y": data.y, "offsets": data.offsets}, None
    if isinstance(evaluate, Evaluation):
        arrays |= {"x_test": evaluate.x.numpy(), "y_test": evaluate.y.numpy()}
        kept = evaluate.changed(x=evaluate.x[:0], y=evaluate.y[:0])
    task = setup.task._replace(data=None, init=None, evaluate=kept)  # type: ignore[arg-type]
    examples = {name: shared.share(array) for name, array in arrays.items()}
    return WorkerSetup(task, setup.sgd, setup.seed, examples, slots)


def main() -> None:
    """What a worker does, until the process that runs the rounds exits or closes the pipe."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    parent = Parent()
    for message, parts in parent:
        if parts:  # the first message
            solver, slots = _set_up(pickle.loads(parts[0]))
            parent.send({"ready": os.getpid()})
        else:
            parent.send(_reply(solver, slots, message))


def _set_up(setup: WorkerSetup) -> tuple[Solver, Slots]:
    arrays = {name: handle.open() for name, handle in setup.examples.items()}
    task = setup.task._replace(data=FederatedData(arrays["x"], arrays["y"], arrays["offsets"]))
    if isinstance(task.evaluate, Evaluation):
        task.evaluate.x = torch.from_numpy(arrays["x_test"])
        task.evaluate.y = torch.from_numpy(arrays["y_test"])
    return Solver(task, setup.sgd, setup.seed), Slots(setup.slots)


def _reply(solver: Solver, slots: Slots, message: dict[str, Any]) -> dict[str, Any]:
    slot = message["slot"]
    try:
        if "evaluation" in message:
            models = list(slots.rows["models"][: message["models"]])
            scores = job_of(message["evaluation"]).answer(solver, message["piece"], models)
            return {"slot": slot, "scores": scores}
        vectors = slots.get(slot, message["vectors"])
        problem = Problem.of(message, slots.rows["w"], solver.task.trained, vectors)
        visit, rest = solver.solve(problem)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"slot": slot, "error": reason, "traceback": traceback.format_exc()}
    results = problem.results(visit, rest)
    slots.put(slot, results)
    return {"slot": slot, "steps": visit.steps, "vectors": list(results)}
