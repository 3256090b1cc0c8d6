"""Engine `distributed`: ranks, processes on one or several machines that torchrun started.

Rank 0 runs the simulation: the rounds, the server's step, averages, records, clients' memory.  The
other ranks hold the task, solve the problems sent to them, and keep nothing.  If a rank is lost,
Gloo's connections break or torchrun ends the others; rank 0 then marks the run as failed.
"""

import atexit
import json
import os
import platform
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from wima.core.errors import RunError, UsageError, check
from wima.core.machine import keep_freed_memory
from wima.core.signals import handled_by
from wima.core.vector import Vector, one_thread
from wima.core.version import __version__
from wima.simulation.local import Problem, Solved, shortened
from wima.simulation.measures.job import EvaluationJob, job_of
from wima.simulation.round import Engine, Setup
from wima.simulation.task import data_checksum

_COMMAND = (
    "engine 'distributed' needs torchrun, which did not start this process. Run\n"
    "  torchrun --nproc-per-node 2 -m wima run ... engine=distributed\n"
    "(on SLURM, `srun torchrun`), or use engine 'processes', which starts its workers itself."
)
_FROM_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
Posted: TypeAlias = tuple[Vector, dist.Work | None]  # a vector being sent, which is kept until then
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_FOREVER = timedelta(days=365)  # a visit may take long; torchrun ends ranks that wait in vain


class Group:
    """All ranks, as seen by one of them."""

    def __init__(self) -> None:
        check(all(os.environ.get(name) for name in _FROM_TORCHRUN), _COMMAND)
        self.bytes = 0  # sent and received without headers; a message to n ranks counts n times
        self.left = False
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:  # all on this machine
            loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
            for name in _INTERFACES if loopback else ():  # unless the user has chosen
                os.environ.setdefault(name, min(loopback))
        with _named():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_FOREVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        self.agree({**versions, "wima": __version__})
        atexit.register(self.leave)  # Gloo's threads must not outlive the interpreter

    def agree(self, facts: dict[str, Any]) -> None:
        """Raise on all ranks unless all have the same facts, which must be JSON values."""
        if self.left:
            raise RunError(f"Rank {self.rank} left an earlier run unfinished.")
        if self.rank:
            self.send_json(facts)
            differences = self.broadcast_json()["differences"]
        else:
            differences = [
                f"rank {rank} differs in {name}: {there.get(name)!r}, but {here!r} at rank 0"
                for rank in range(1, self.size)
                for there in [self.recv_json(rank)]
                for name in sorted({*facts, *there})
                for here in [facts.get(name)]
                if there.get(name) != here
            ]
            self.broadcast_json({"differences": differences})
        if differences:
            raise UsageError(
                "All ranks need the same settings, versions and data:\n  "
                + "\n  ".join(differences)
            )

    def leave(self) -> None:
        """Break the connections; ranks that wait for this one fail."""
        if not self.left:
            self.left = True
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def broadcast_json(self, message: dict[str, Any] | None = None) -> dict[str, Any]:
        """Rank 0's message to all others, which pass none and receive it."""
        length, text = _encoded(message)
        size = int(self.broadcast(length))
        if self.rank:
            text = torch.empty(size, dtype=torch.uint8)
        return json.loads(self.broadcast(text).numpy().tobytes())  # type: ignore[no-any-return]

    def broadcast(self, tensor: Vector) -> Vector:
        """Broadcast rank 0's tensor; the others pass one of the same shape to receive it."""
        tensor = tensor.contiguous()
        with _named():
            dist.broadcast(tensor, 0)
        self.bytes += tensor.nbytes * (self.size - 1 if self.rank == 0 else 1)
        return tensor

    def send(self, *vectors: Vector, rank: int = 0) -> None:
        """Send vectors, and wait until they have left."""
        self.wait([self.post(vector.contiguous(), rank) for vector in vectors])

    def post(self, vector: Vector, rank: int = 0) -> Posted:
        """Send a vector that must not change before `wait`."""
        self.bytes += vector.nbytes
        with _named():
            return vector, dist.isend(vector, rank)

    def wait(self, posted: Iterable[Posted]) -> None:
        """Wait until these have left."""
        with _named():
            for _, work in posted:
                if work is not None:
                    work.wait()

    def recv(self, vector: Vector, rank: int = 0) -> Vector:
        """Fill a vector with what a rank sent."""
        with _named():
            dist.recv(vector, rank)
        self.bytes += vector.nbytes
        return vector

    def send_json(self, message: dict[str, Any]) -> None:
        """Send a message to rank 0."""
        self.send(*_encoded(message))

    def recv_json(self, rank: int) -> dict[str, Any]:
        """The next message that a rank sent with `send_json`."""
        size = int(self.recv(torch.zeros(1, dtype=torch.int64), rank))
        text = self.recv(torch.empty(size, dtype=torch.uint8), rank)
        return json.loads(text.numpy().tobytes())  # type: ignore[no-any-return]


@cache
def join() -> Group:
    """This process's group, joined at the first call."""
    return Group()


@contextmanager
def _named() -> Iterator[None]:
    """Say in a sentence what torch's network errors mean."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's text is "[file:line] what happened. Advice": only the middle helps here.
        line = str(error).partition("\n")[0]
        reason = line.partition("] ")[2].partition(". ")[0] or line
        raise RunError(
            "The connection between the ranks failed, so the run cannot continue: a rank exited or "
            f"can no longer be reached; torchrun names the first one. ({reason})"
        ) from error


def _encoded(message: dict[str, Any] | None) -> tuple[Vector, Vector]:
    """A message as its length and its bytes."""
    text = bytearray(json.dumps(message).encode())
    return torch.tensor([len(text)]), torch.frombuffer(text, dtype=torch.uint8)


def distributed(setup: Setup, w: Vector) -> Engine:
    """The engine of this rank, after checking that all ranks have the same settings."""
    group = join()
    keep_freed_memory()
    facts = {
        "algorithm": setup.algorithm,
        "training of clients": setup.sgd,
        "seed": setup.seed,
        "weighting": setup.weighting,
        "faults": setup.faults,
        "parameters": len(w),
        "data": data_checksum(setup.task),
    }
    group.agree({name: str(fact) for name, fact in facts.items()})
    return WorkerRank(group, setup, w) if group.rank else Ranks(group, setup, w)


class Ranks(Engine):
    """Rank 0: distributes problems and collects visits."""

    name = "distributed"

    def __init__(self, group: Group, setup: Setup, w: Vector) -> None:
        super().__init__(setup)
        self.group, self._trained = group, len(w[: setup.task.trained])
        self._waiting, self._closed = False, False  # waiting: ranks are at work

    def solve(self, problems: list[Problem]) -> Iterator[Solved]:
        """Solve this rank's problems first, then yield all in the order of the cohort."""
        owners = self._hand_out(problems)
        own: dict[int, Solved | RunError] = {}
        for position, owner in enumerate(owners):
            if owner == 0:
                try:
                    own[position] = self.solve_here(problems[position])
                except RunError as error:  # raised when it is the client's turn
                    own[position] = error
        for position, problem in enumerate(problems):
            visit = own.pop(position, None) or self._receive(owners[position], problem)
            if isinstance(visit, RunError):
                raise visit
            yield visit
        self._waiting = False

    def evaluate(self, evaluation: EvaluationJob, models: list[Vector]) -> list[Any]:
        """All models at once; rank r takes every n-th piece, starting at r."""
        group, pieces = self.group, [int(piece) for piece in evaluation.pieces]
        self._waiting = True
        work = {"models": len(models), "pieces": pieces, "evaluation": evaluation.fields()}
        group.broadcast_json({"do": "evaluate", **work})
        stacked = group.broadcast(torch.stack(models))
        scores = _scores(self, group, evaluation, pieces, stacked)
        for rank in range(1, group.size):
            reply = group.recv_json(rank)
            if "error" in reply:
                raise RunError(reply["error"])
            scores.update((int(piece), score) for piece, score in reply["scores"].items())
        self._waiting = False
        return [scores[piece] for piece in pieces]

    def close(self) -> None:
        """Release the other ranks; if they are at work they cannot listen, so leave the group."""
        if self._closed:
            return
        self._closed = True
        if not self._waiting:
            with suppress(RunError):  # a rank was lost after finishing its work
                self.group.broadcast_json({"do": "end"})
                return
        self.group.leave()

    def _hand_out(self, problems: list[Problem]) -> list[int]:
        """Send each rank its problems; return the rank of each problem."""
        group, alike = self.group, all(p.local is problems[0].local for p in problems)
        owners = shared_out([self._cost(problem) for problem in problems], group.size)
        self._waiting = True
        messages, vectors = zip(*(problem.message() for problem in problems), strict=True)
        order = {"do": "solve", "owners": owners, "alike": alike, "problems": messages}
        group.broadcast_json(order)
        group.broadcast(problems[0].w)
        for vector in vectors[0].values() if alike else ():
            group.broadcast(vector)
        if not alike:
            for named, owner in zip(vectors, owners, strict=True):
                if owner:
                    group.send(*named.values(), rank=owner)
        return owners

    def _cost(self, problem: Problem) -> int:
        """The number of example gradients that a visit computes."""
        n, sgd = self.setup.task.data.size(problem.client), self.setup.sgd
        steps = shortened(sgd.count(n), problem.share) if problem.local is not None else 0
        return steps * sgd.size(n) + (n if problem.full_gradient else 0)

    def _receive(self, rank: int, problem: Problem) -> Solved | RunError:
        """A visit that a rank computed: its steps, then its vectors."""
        reply = self.group.recv_json(rank)
        if "error" in reply:
            return RunError(reply["error"])
        vectors = {}
        for name in reply["vectors"]:
            part = slice(self._trained, None) if name == "rest" else slice(self._trained)
            vectors[name] = self.group.recv(torch.empty_like(problem.w[part]), rank)
        return problem.solved(reply["steps"], **vectors)


class WorkerRank(Engine):
    """Any other rank: solves what rank 0 sends."""

    name, is_worker_rank = "distributed", True

    def __init__(self, group: Group, setup: Setup, w: Vector) -> None:
        super().__init__(setup)
        self.group = group
        self._like, self._trained = torch.empty_like(w), len(w[: setup.task.trained])

    def serve(self) -> bool:
        """Work until rank 0 has ended the run."""
        # Rank 0 handles signals sent to all processes of a run: it may have to finish a round.
        try:
            with one_thread(), handled_by(signal.SIG_IGN):
                while (order := self.group.broadcast_json())["do"] != "end":
                    if order["do"] == "solve":
                        self._solve_all(order)
                    else:
                        self._evaluate(order)
        except BaseException:
            self.group.leave()  # rank 0 must not wait for this one
            raise
        return True

    def _solve_all(self, order: dict[str, Any]) -> None:
        """Send each visit as soon as it is ready; rank 0 receives it in its turn."""
        on_the_way: list[Posted] = []

        def post(reply: dict[str, Any], *vectors: Vector) -> None:
            on_the_way.extend(map(self.group.post, [*_encoded(reply), *vectors]))

        group, alike = self.group, order["alike"]
        w, vectors = group.broadcast(torch.empty_like(self._like)), {}
        trained = w[: self._trained]
        if alike:
            for name in order["problems"][0]["vectors"]:
                vectors[name] = group.broadcast(torch.empty_like(trained))
        problems = []  # of this rank, in the order of the cohort
        for message, owner in zip(order["problems"], order["owners"], strict=True):
            if owner == group.rank:
                if not alike:
                    names = message["vectors"]
                    vectors = {name: group.recv(torch.empty_like(trained)) for name in names}
                problems.append(Problem.of(message, w, self._trained, vectors))
        for problem in problems:
            try:
                visit, rest = self.solve_here(problem)
            except RunError as error:
                post({"error": str(error)})
                break
            vectors = problem.results(visit, rest)
            post({"steps": visit.steps, "vectors": list(vectors)}, *vectors.values())
        self.group.wait(on_the_way)

    def _evaluate(self, order: dict[str, Any]) -> None:
        shape = (order["models"], len(self._like))
        models = self.group.broadcast(self._like.new_empty(shape))
        try:
            scores = _scores(self, self.group, job_of(order["evaluation"]), order["pieces"], models)
            reply: dict[str, Any] = {"scores": scores}
        except Exception as error:
            reply = {"error": f"evaluation: {type(error).__name__}: {error}"}
        self.group.send_json(reply)


def shared_out(costs: list[int], ranks: int) -> list[int]:
    """The rank of each problem: longest first, each to the rank with the least work so far."""
    load, owners = [0] * ranks, [0] * len(costs)
    for position in sorted(range(len(costs)), key=lambda position: -costs[position]):
        owners[position] = min(range(ranks), key=load.__getitem__)
        load[owners[position]] += costs[position]
    return owners


def _scores(
    engine: Engine, group: Group, evaluation: EvaluationJob, pieces: list[int], models: Vector
) -> dict[int, list[Any]]:
    """The scores of this rank's share of the pieces."""
    return {
        piece: evaluation.answer(engine.solver, piece, list(models))
        for piece in pieces[group.rank :: group.size]
    }
