"""Engine `processes`: this process and persistent workers with one thread each and shared memory.

On a CPU, one process per core with one thread each beats one process with all threads.  Results do
not depend on the number of processes, or on which one does a job.  A job is a client's local
problem, or a batch of examples on which models are evaluated.  Arrays are shared through unlinked
temporary files, which workers inherit as descriptors.
"""

import contextlib
import errno
import mmap
import os
import pickle
import selectors
import tempfile
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from math import prod
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from wima.core.errors import RunError, check
from wima.core.machine import keep_freed_memory, open_streams, reserve
from wima.core.vector import Vector
from wima.core.workers import Exited, Parent, Worker, end, pickled
from wima.data.federated import FederatedData, keep_file
from wima.simulation.local import Problem, Solved, Solver
from wima.simulation.measures.base import Evaluation
from wima.simulation.measures.job import EvaluationJob, job_of
from wima.simulation.options import LocalSGD
from wima.simulation.round import Engine, Setup
from wima.simulation.task import Task

_ATTEMPTS = 3  # workers that exit at the same job before the run fails
_REFUSED = "engine 'processes' cannot send this model to its workers ({}); use engine 'serial'."
_AHEAD = 2  # jobs sent to a worker before it answers, so that it never waits
MEMORY = "/dev/shm"
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Job(NamedTuple):
    """The local problem at this position in the cohort, or this piece of an evaluation."""

    number: int
    work: Problem | EvaluationJob

    def __str__(self) -> str:
        if isinstance(self.work, Problem):
            return f"round {self.work.t}, client {self.work.client}, local training"
        kind = "fine-tuning, client" if self.work.finetune else "evaluation, batch"
        return f"{kind} {self.number}"


class Handle(NamedTuple):
    """How a child process finds a shared array."""

    fd: int
    dtype: str
    shape: tuple[int, ...]
    file: str | None = None  # an array mapped from a file is mapped again, not copied
    offset: int = 0

    def open(self) -> npt.NDArray[Any]:
        """Map the array into this process."""
        if self.file is not None:
            array = np.memmap(self.file, np.dtype(self.dtype), "c", self.offset, self.shape)
            keep_file(array)
            return array
        count = prod(self.shape)
        if count == 0:
            return np.empty(self.shape, np.dtype(self.dtype))
        memory = mmap.mmap(self.fd, count * np.dtype(self.dtype).itemsize)
        return np.frombuffer(memory, np.dtype(self.dtype), count).reshape(self.shape)


class Shared:
    """Arrays shared by a parent process and its children."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors that children must inherit."""
        return [file.fileno() for file in self._files]

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Handle:
        """A new array of zeros."""
        file = _file(max(1, prod(shape) * np.dtype(dtype).itemsize))
        self._files.append(file)
        return Handle(file.fileno(), np.dtype(dtype).str, tuple(shape))

    def share(self, array: npt.NDArray[Any]) -> Handle:
        """Make an array available to children: as a copy, or as the file it is mapped from."""
        whole = isinstance(getattr(array, "base", None), mmap.mmap) and array.flags.c_contiguous
        if isinstance(array, np.memmap) and array.filename and whole:
            shape, file = tuple(array.shape), str(array.filename)
            return Handle(-1, array.dtype.str, shape, file, array.offset)
        handle = self.allocate(array.shape, array.dtype)
        if array.size:
            handle.open()[...] = array
        return handle

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()


def _file(size: int) -> IO[bytes]:
    """An unnamed file of this size, in memory if it fits."""
    folders, reasons = [MEMORY, tempfile.gettempdir()], []
    for folder in filter(os.path.isdir, folders):
        with contextlib.ExitStack() as stack:
            try:
                disk = os.statvfs(folder)
                # Check first: a reservation that fails would take all free memory for a moment.
                if disk.f_bavail * disk.f_frsize < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                reserve(file.fileno(), size)
                stack.pop_all()  # it stays open
                return file
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror}")
    raise RunError(
        f"engine 'processes' needs a temporary file of {size / 1e6:,.0f} MB, and there is not "
        f"enough space ({'; '.join(reasons)}). Set TMPDIR to a folder with more space, or use "
        "engine 'serial'."
    )


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
        check(
            w.dtype in DTYPES,
            f"engine 'processes' takes models in float32 or float64, got {w.dtype}; use 'serial'.",
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
        open_streams()  # before there is shared memory
        shared = Shared()
        # A worker ends when its input closes, even if nobody calls `close`.
        self._close = weakref.finalize(self, _end, self._workers, shared)
        keep_freed_memory()
        try:
            slots = _AHEAD * self._size  # for jobs sent to workers and not yet answered
            size, trained = len(w), len(w[: setup.task.trained])
            shapes: dict[str, tuple[int, ...]] = {  # by slot, but for w
                "w": (size,),
                "start": (slots, trained),
                "shift": (slots, trained),
                "end": (slots, trained),
                "rest": (slots, size - trained),
                "gradient": (slots if setup.algorithm.full_gradient != "none" else 0, trained),
                "path_gradient": (slots if setup.algorithm.path_gradient else 0, trained),
                "models": (models, size),
            }
            handles = {n: shared.allocate(shape, DTYPES[w.dtype]) for n, shape in shapes.items()}
            self._rows, self._free = _opened(handles), list(range(slots))
            self._torch = {  # its settings that decide bytes
                "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
                "precision": torch.get_float32_matmul_precision(),
                "mkldnn": torch.backends.mkldnn.enabled,
            }
            self._first_message = pickled((_for_workers(setup, shared), handles), _REFUSED)
            self._descriptors = shared.descriptors
            self._start()
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        self._close()

    def prefetch(self, problems: list[Problem]) -> None:
        self._prefetched = problems
        self._solved.clear()
        self._rows["w"].copy_(problems[0].w)
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
        self._models = list(self._rows["models"][: len(models)])
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
            for name, vector in vectors.items():
                self._rows[name][slot].copy_(vector)
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
            copies = {name: self._rows[name][slot].clone() for name in reply["vectors"]}
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
                    worker.send(self._torch, self._first_message)
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


def _opened(handles: dict[str, Handle]) -> dict[str, Vector]:
    return {name: torch.from_numpy(handle.open()) for name, handle in handles.items()}


def _good(result: Result | RunError) -> Result:
    """The result, unless it is an error."""
    if isinstance(result, RunError):
        raise result
    return result


def _for_workers(setup: Setup, shared: Shared) -> tuple[Task, LocalSGD, int, dict[str, Handle]]:
    """What workers need to know; examples are shared, not sent with the task."""
    data, evaluate = setup.task.data, setup.task.evaluate
    arrays, kept = {"x": data.x, "y": data.y, "offsets": data.offsets}, None
    if isinstance(evaluate, Evaluation):
        arrays |= {"x_test": evaluate.x.numpy(), "y_test": evaluate.y.numpy()}
        kept = evaluate.changed(x=evaluate.x[:0], y=evaluate.y[:0])
    task = setup.task._replace(data=None, init=None, evaluate=kept)  # type: ignore[arg-type]
    examples = {name: shared.share(array) for name, array in arrays.items()}
    return task, setup.sgd, setup.seed, examples


def main() -> None:
    """What a worker does, until the process that runs the rounds exits or closes the pipe."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    parent = Parent()
    for message, parts in parent:
        if parts:  # the first message
            torch.set_default_dtype(getattr(torch, message["dtype"]))
            torch.set_float32_matmul_precision(message["precision"])
            torch.backends.mkldnn.enabled = message["mkldnn"]
            (task, sgd, seed, examples), handles = pickle.loads(parts[0])
            arrays = {name: handle.open() for name, handle in examples.items()}
            data = FederatedData(arrays["x"], arrays["y"], arrays["offsets"])
            task = task._replace(data=data)
            if isinstance(task.evaluate, Evaluation):
                task.evaluate.x = torch.from_numpy(arrays["x_test"])
                task.evaluate.y = torch.from_numpy(arrays["y_test"])
            solver, rows = Solver(task, sgd, seed), _opened(handles)
            parent.send({"ready": os.getpid()})
        else:
            parent.send(_reply(solver, rows, message))


def _reply(solver: Solver, rows: dict[str, Vector], message: dict[str, Any]) -> dict[str, Any]:
    slot = message["slot"]
    try:
        if "evaluation" in message:
            models = list(rows["models"][: message["models"]])
            scores = job_of(message["evaluation"]).answer(solver, message["piece"], models)
            return {"slot": slot, "scores": scores}
        vectors = {name: rows[name][slot] for name in message["vectors"]}
        problem = Problem.of(message, rows["w"], solver.task.trained, vectors)
        visit, rest = solver.solve(problem)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"slot": slot, "error": reason, "traceback": traceback.format_exc()}
    results = problem.results(visit, rest)
    for name, vector in results.items():
        rows[name][slot].copy_(vector)
    return {"slot": slot, "steps": visit.steps, "vectors": list(results)}
