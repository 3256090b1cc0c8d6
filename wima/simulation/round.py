"""The round of the fast engines: hooks run here, and a pool solves the local problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm, State
from wima.core.errors import RunError
from wima.core.vector import Vector
from wima.simulation.engines.base import Engine, RoundState, Setup, located
from wima.simulation.local import Problem, Solution, Solver, fresh_part, visit_of
from wima.simulation.measures.job import EvaluationJob as Exam
from wima.simulation.server import Means, Updates, observed, step


class Pool:
    """Solves local problems.  The flags say what else a pool can do."""

    runs_ahead = False  # `begin` starts on the problems of the next `solve`
    can_average = False  # `mean_delta` returns only the mean of the deltas
    can_examine = False

    def begin(self, problems: list[Problem]) -> None:
        raise NotImplementedError

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]:
        """Each problem with its solution, in order."""
        raise NotImplementedError

    def mean_delta(self, problems: list[Problem], weights: list[float]) -> Vector:
        raise NotImplementedError

    def examine(self, exam: Exam, models: list[Vector]) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        """Stop the workers, if any."""


class Opening(NamedTuple):
    """The first problems of a round, which depend on no other solutions."""

    t: int
    w: Vector
    problems: list[Problem]


class Pooled(Engine):
    """An engine made of a pool: the formulas of `Reference`, with any pool."""

    def __init__(self, name: str, setup: Setup, pool: Pool) -> None:
        self.name, self.setup, self.pool = name, setup, pool
        self.runs_ahead = pool.runs_ahead
        self._begun: Opening | None = None
        hooks, mine = ("client_init", "client_finish"), type(setup.algorithm)
        # Clients without memory that send only their delta all have the same problem.
        self._alike = all(getattr(mine, hook) is getattr(Algorithm, hook) for hook in hooks)
        self._mean_suffices = self._alike and pool.can_average and not setup.faults.exclude
        self._mean_suffices = self._mean_suffices and setup.privacy is None

    def close(self) -> None:
        self.pool.close()

    def examine(self, exam: Exam, models: list[Vector]) -> list[Any]:
        examine = self.pool.examine if self.pool.can_examine else super().examine
        return examine(exam, models)

    def begin(self, state: RoundState, t: int, cohort: list[int], lr: float) -> None:
        try:
            self._begun = self._opening(state, t, cohort, lr)
        except RunError:  # the round itself will report it
            return
        self.pool.begin(self._begun.problems)

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        begun, self._begun = self._begun, None
        if begun is None or begun.t != t or begun.w is not state.w:
            begun = self._opening(state, t, cohort, lr)
        server, problems, gradient = state.server, begun.problems, None
        if self.setup.algorithm.full_gradient == "cohort":
            server, usable, gradient = self._observe(server, t, problems)
            problems = self._problems(state, server, t, usable, lr)
        means, counted = self._train(state, server, t, problems)
        if means is not None:
            if gradient is not None:
                means = means._replace(fresh=gradient)
            state = step(self.setup, state, server, means, t)
        else:
            state = state._replace(fresh=None)
        return state._replace(excluded=tuple(i for i in cohort if i not in counted))

    def _opening(self, state: RoundState, t: int, cohort: list[int], lr: float) -> Opening:
        """MIME's rounds begin with full gradients at w, all others with training."""
        if self.setup.algorithm.full_gradient == "cohort":
            problems = [Problem(t, i, lr, state.w, None, full_gradient=True) for i in cohort]
        else:
            problems = self._problems(state, state.server, t, cohort, lr)
        return Opening(t, state.w, problems)

    def _observe(
        self, server: State, t: int, problems: list[Problem]
    ) -> tuple[State, list[int], Vector | None]:
        """Phase A of MIME: the server's state, the clients with usable gradients, their mean."""
        usable = []

        def gradients() -> Iterator[tuple[float, Vector]]:
            for problem, solution in self.pool.solve(problems):
                assert solution.gradient is not None
                if self.setup.usable(solution.gradient):
                    usable.append(problem.client)
                    yield self.setup.weight(problem.client), solution.gradient

        server, gradient = observed(self.setup, server, t, gradients())
        return server, usable, gradient

    def _problems(
        self, state: RoundState, server: State, t: int, cohort: list[int], lr: float
    ) -> list[Problem]:
        algorithm, w = self.setup.algorithm, state.w[: self.setup.trained]
        own, problems, local = algorithm.full_gradient == "own", [], None
        for i in cohort:
            if local is None or not self._alike:
                with located(t, "local", i):
                    local = algorithm.local(w, server, state.memory.read(i, w))
            share = self.setup.faults.share(self.setup.seed, t, i)
            problems.append(Problem(t, i, lr, state.w, local, own, algorithm.path_gradient, share))
        return problems

    def _train(
        self, state: RoundState, server: State, t: int, problems: list[Problem]
    ) -> tuple[Means | None, list[int]]:
        """The means over the clients' visits, and the clients included in them."""
        setup = self.setup
        if self._mean_suffices and problems and not (setup.fresh and _shifted(problems[0])):
            clients = [problem.client for problem in problems]
            mean = self.pool.mean_delta(problems, [setup.weight(i) for i in clients])
            return Means(mean, None, None, len(clients), mean), clients
        w = state.w[: setup.trained]
        rest, updates, counted = state.w[len(w) :], Updates(setup, state), []
        for problem, solution in self.pool.solve(problems) if problems else ():
            assert solution.end is not None
            if not setup.usable(solution):
                continue
            i, visit = problem.client, visit_of(problem, solution)
            with located(problem.t, "client_finish", i):
                memory = state.memory.read(i, w)
                extra, memory = setup.algorithm.client_finish(visit, server, memory)
            delta, moved = visit.delta, rest - solution.end[len(w) :] if len(rest) else None
            if not setup.usable(delta, moved, extra, memory):
                continue
            counted.append(i)
            state.memory.write(i, memory)
            assert problem.local is not None
            fresh = fresh_part(visit, problem.local) if setup.fresh else None
            updates.add(setup.weight(i), delta, extra, moved, fresh)
        return updates.means(setup, t), counted


def _shifted(problem: Problem) -> bool:
    return problem.local is not None and isinstance(problem.local.shift, torch.Tensor)


class Serial(Pool):
    """The pool that solves problems in this process."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]:
        for problem in problems:
            with located(problem.t, "local training", problem.client):
                solution = self._solver.solve(problem)
            yield problem, solution
