"""The pool of ranks: processes on one or several machines that torchrun or srun started.

Rank 0 runs the simulation: the rounds, the server's step, averages, records, clients' memory.  The
other ranks hold the task, solve the problems sent to them, and keep nothing.  A solution does not
depend on the rank that computes it, and rank 0 adds solutions up in the order of the cohort, so the
bytes are those of `serial`.  With `reduce`, each rank adds up its clients' deltas and sends one
vector, if the round needs no more; results are then equal up to rounding.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from wima.core.errors import RunError
from wima.core.signals import handled_by
from wima.core.vector import Vector, one_thread
from wima.data.batches import shortened
from wima.simulation.engines.base import Engine, Setup, located
from wima.simulation.engines.group import Group, Posted, join
from wima.simulation.engines.shared import keep_freed_memory
from wima.simulation.local import (
    Problem,
    Solution,
    Solver,
    fields_of,
    named_vectors,
    problem_of,
    vectors_of,
)
from wima.simulation.measures.job import EvaluationJob as Exam, job_of as exam_of
from wima.simulation.round import Pool, Pooled
from wima.simulation.task import data_checksum


def distributed(setup: Setup, w: Vector, collective: str) -> Engine:
    """The engine of this rank, after checking that all ranks have the same settings."""
    group = join()
    keep_freed_memory()
    facts = {
        "algorithm": setup.algorithm,
        "training of clients": setup.sgd,
        "seed": setup.seed,
        "weighting": setup.weighting,
        "faults": setup.faults,
        "collective": collective,
        "parameters": len(w),
        "data": data_checksum(setup.task),
    }
    group.agree({name: str(fact) for name, fact in facts.items()})
    group.begin()
    if group.rank:
        return Helper(group, setup, w)
    return Pooled("distributed", setup, Distributed(group, setup, w, collective))


class Distributed(Pool):
    """Rank 0: distributes problems and collects solutions."""

    can_examine = True

    def __init__(self, group: Group, setup: Setup, w: Vector, collective: str) -> None:
        self.group, self._setup = group, setup
        self._solver = Solver(setup.task, setup.sgd, setup.seed)
        self._trained = len(w[: setup.trained])
        # BatchNorm's statistics, which are also averaged, arrive only with full solutions.
        self.can_average = collective == "reduce" and self._trained == len(w)
        self._waiting, self._closed = False, False  # waiting: ranks are at work

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]:
        """Solve this rank's problems first, then yield all in the order of the cohort."""
        owners = self._hand_out("solve", problems)
        own = [place for place, owner in enumerate(owners) if owner == 0]
        solved = {place: self._solve(problems[place]) for place in own}
        for place, problem in enumerate(problems):
            solution = solved.pop(place, None) or self._receive(owners[place], problem)
            if isinstance(solution, RunError):
                raise solution
            yield problem, solution
        self._waiting = False

    def mean_delta(self, problems: list[Problem], weights: list[float]) -> Vector:
        shares = [weight / sum(weights) for weight in weights]
        owners = self._hand_out("sum", problems, shares=shares)
        own = [place for place, owner in enumerate(owners) if owner == 0]
        total = torch.zeros_like(problems[0].w)
        for place in own:
            solution = self._solve(problems[place])
            if isinstance(solution, RunError):
                raise solution
            _add_delta(total, problems[place], solution, shares[place])
        for rank in range(1, self.group.size):
            if error := self.group.reported(rank).get("error"):
                raise RunError(error)
        total = self.group.sum(total)
        self._waiting = False
        return total

    def examine(self, exam: Exam, models: list[Vector]) -> list[Any]:
        """All models at once; rank r takes every n-th piece, starting at r."""
        group, pieces = self.group, [int(piece) for piece in exam.pieces]
        self._waiting = True
        about = {"models": len(models), "pieces": pieces, "exam": exam.fields()}
        group.tell({"do": "examine", **about})
        scores = _answers(self._solver, exam, pieces, group.share(torch.stack(models)), group)
        for rank in range(1, group.size):
            answer = group.reported(rank)
            if "error" in answer:
                raise RunError(answer["error"])
            scores.update((int(piece), totals) for piece, totals in answer["scores"].items())
        self._waiting = False
        return [scores[piece] for piece in pieces]

    def close(self) -> None:
        """Release the other ranks; if they are at work they cannot listen, so leave the group."""
        if self._closed:
            return
        self._closed = True
        if not self._waiting:
            with suppress(RunError):  # a rank was lost after finishing its work
                self.group.tell({"do": "end"})
                self.group.end()
                return
        self.group.leave()

    def _hand_out(self, what: str, problems: list[Problem], **more: Any) -> list[int]:
        """Send each rank its problems; return the rank of each problem."""
        group, alike = self.group, all(p.local is problems[0].local for p in problems)
        owners = shared_out([self._cost(problem) for problem in problems], group.size)
        self._waiting = True
        fields = [fields_of(problem) for problem in problems]
        group.tell({"do": what, "owners": owners, "alike": alike, "problems": fields, **more})
        group.share(problems[0].w)
        if alike:
            for vector in vectors_of(problems[0]).values():
                group.share(vector)
            return owners
        for problem, owner in zip(problems, owners, strict=True):
            for vector in vectors_of(problem).values() if owner else ():
                group.send(vector, owner)
        return owners

    def _cost(self, problem: Problem) -> int:
        """The number of example gradients that a visit computes."""
        n, sgd = self._setup.task.data.size(problem.client), self._setup.sgd
        steps = shortened(sgd.count(n), problem.share) if problem.local is not None else 0
        return steps * sgd.size(n) + (n if problem.full_gradient else 0)

    def _solve(self, problem: Problem) -> Solution | RunError:
        """Solve in this process; an error is raised when it is the client's turn."""
        self.group.pulse.check()
        try:
            with located(problem.t, "local training", problem.client):
                return self._solver.solve(problem)
        except RunError as error:
            return error

    def _receive(self, rank: int, problem: Problem) -> Solution | RunError:
        answer, parts = self.group.reported(rank), []
        if "error" in answer:
            return RunError(answer["error"])
        for wanted, size in self._sizes(problem):
            vector = self.group.receive(size, problem.w, rank) if wanted else None
            parts.append(vector)
        end, gradient, path = parts
        return Solution(end, answer["steps"], gradient, path)

    def _sizes(self, problem: Problem) -> list[tuple[bool, int]]:
        """Which vectors a solution has, and their lengths."""
        ends = problem.local is not None, len(problem.w)
        own, path = problem.full_gradient, problem.path_gradient and problem.local is not None
        return [ends, (own, self._trained), (path, self._trained)]


class Helper(Engine):
    """Any other rank: solves what rank 0 sends."""

    name, helps = "distributed", True

    def __init__(self, group: Group, setup: Setup, w: Vector) -> None:
        self.group, self._setup = group, setup
        self._solver = Solver(setup.task, setup.sgd, setup.seed)
        self._like, self._trained = torch.empty_like(w), len(w[: setup.trained])

    def serve(self) -> bool:
        """Work until rank 0 has ended the run."""
        work = {"solve": self._solve_all, "sum": self._sum, "examine": self._examine}
        # Rank 0 handles signals sent to all processes of a run: it may have to finish a round.
        with one_thread(), handled_by(signal.SIG_IGN):
            while (order := self.group.hear())["do"] != "end":
                work[order["do"]](order)
        self.group.end()
        return True

    def _problems(self, order: dict[str, Any]) -> dict[int, Problem]:
        """This rank's problems, by place in the cohort."""
        w, shared = self.group.share(torch.empty_like(self._like)), {}
        if order["alike"]:
            for name in named_vectors(order["problems"][0]):
                shared[name] = self.group.share(torch.empty_like(w[: self._trained]))
        found = {}
        for place, (fields, owner) in enumerate(
            zip(order["problems"], order["owners"], strict=True)
        ):
            if owner != self.group.rank:
                continue
            own = {} if order["alike"] else self._own_vectors(fields)
            found[place] = problem_of(fields, w, self._trained, shared | own)
        return found

    def _own_vectors(self, fields: dict[str, Any]) -> dict[str, Vector]:
        names, size = named_vectors(fields), self._trained
        return {name: self.group.receive(size, self._like, 0) for name in names}

    def _solve_all(self, order: dict[str, Any]) -> None:
        """Send each solution as soon as it is ready; rank 0 receives it in its turn."""
        on_the_way: list[Posted] = []
        for problem in self._problems(order).values():
            answer, vectors = self._solved(problem)
            on_the_way += self.group.report(answer)
            on_the_way += [self.group.post(vector, 0) for vector in vectors]
            if "error" in answer:
                break
        for posted in on_the_way:
            posted.wait()

    def _solved(self, problem: Problem) -> tuple[dict[str, Any], list[Vector]]:
        try:
            with located(problem.t, "local training", problem.client):
                solution = self._solver.solve(problem)
        except RunError as error:
            return {"error": str(error)}, []
        vectors = solution.end, solution.gradient, solution.path_gradient
        return {"steps": solution.steps}, [v.contiguous() for v in vectors if v is not None]

    def _sum(self, order: dict[str, Any]) -> None:
        """Send the sum of the deltas of this rank's clients."""
        total, answer = torch.zeros_like(self._like), {}
        for place, problem in self._problems(order).items():
            try:
                with located(problem.t, "local training", problem.client):
                    solution = self._solver.solve(problem)
            except RunError as error:
                answer = {"error": str(error)}
                break
            _add_delta(total, problem, solution, order["shares"][place])
        for posted in self.group.report(answer):
            posted.wait()
        self.group.sum(total)

    def _examine(self, order: dict[str, Any]) -> None:
        exam, shape = exam_of(order["exam"]), (order["models"], len(self._like))
        models = self.group.share(self._like.new_empty(shape))
        try:
            found = _answers(self._solver, exam, order["pieces"], models, self.group)
            answer: dict[str, Any] = {"scores": found}
        except Exception as error:
            answer = {"error": f"evaluation: {type(error).__name__}: {error}"}
        for posted in self.group.report(answer):
            posted.wait()


def shared_out(costs: list[int], ranks: int) -> list[int]:
    """The rank of each problem: longest first, each to the rank with the least work so far."""
    load, owners = [0] * ranks, [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        owners[place] = min(range(ranks), key=load.__getitem__)
        load[owners[place]] += costs[place]
    return owners


def _add_delta(total: Vector, problem: Problem, solution: Solution, share: float) -> None:
    assert problem.local is not None and solution.end is not None
    total.add_(problem.local.start - solution.end, alpha=share)


def _answers(
    solver: Solver, exam: Exam, pieces: list[int], models: Vector, group: Group
) -> dict[int, list[Any]]:
    """The answers for this rank's share of the pieces."""
    own = pieces[group.rank :: group.size]
    return {piece: exam.answer(solver, piece, list(models)) for piece in own}
