"""The round as fast engines play it: hooks here, local problems wherever the pool solves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch

from wima.algorithms.base import State, Visit
from wima.engine.base import RoundState, RunningMean, Setup, evaluate_here, naming
from wima.engine.local import Problem, Solution, Solver
from wima.evaluation import Metrics
from wima.vector import Vector


class Pool(Protocol):
    """Solves problems, drawn as there is room; each comes back, in order, with its solution."""

    def solve(self, problems: Iterable[Problem]) -> Iterator[tuple[Problem, Solution]]: ...

    def close(self) -> None: ...


@runtime_checkable
class Evaluates(Protocol):
    """A pool that can evaluate models too."""

    can_evaluate: bool

    def evaluate(self, models: dict[str, Vector]) -> dict[str, Metrics]: ...


class Pooled:
    """An engine made of a pool.  Same bytes as `Reference`, whatever the pool."""

    def __init__(self, name: str, setup: Setup, pool: Pool) -> None:
        self.name, self.setup, self.pool = name, setup, pool

    def close(self) -> None:
        self.pool.close()

    def evaluate(self, models: dict[str, Vector]) -> dict[str, Metrics]:
        if isinstance(self.pool, Evaluates) and self.pool.can_evaluate:
            return self.pool.evaluate(models)
        return evaluate_here(self.setup.task, models)

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        setup, algorithm = self.setup, self.setup.algorithm
        w = state.w[: setup.trained]
        rest = state.w[len(w) :]
        server = self._observe(state, t, cohort, lr)
        problems = self._problems(state, server, t, cohort, lr)
        deltas, extras, rests = RunningMean(), RunningMean(), RunningMean()
        for problem, solution in self.pool.solve(problems):
            assert problem.local is not None and solution.end is not None
            i, end = problem.client, solution.end
            start, weight = problem.local.start, setup.weight(i)
            visit = Visit(start, end[: len(w)], solution.steps, lr, t, *solution[2:])
            with naming(t, "client_finish", i):
                extra, client = algorithm.client_finish(visit, server, state.memory.read(i, w))
            state.memory.write(i, client)
            deltas.add(visit.delta, weight)
            rests.add(rest - end[len(w) :], weight)
            if extra is not None:
                extras.add(extra, weight if algorithm.extra_mean == "weighted" else 1.0)
        fraction = len(cohort) / setup.task.data.num_clients
        with naming(t, "server_update"):
            gradient, server = algorithm.server_update(
                w, deltas.vector, extras.value, server, fraction
            )
        step, opt = setup.server_opt.update(gradient, state.opt)
        return RoundState(torch.cat([w - step, rest - rests.vector]), server, opt, state.memory)

    def _problems(
        self, state: RoundState, server: State, t: int, cohort: list[int], lr: float
    ) -> Iterator[Problem]:
        algorithm, w = self.setup.algorithm, state.w[: self.setup.trained]
        for i in cohort:
            with naming(t, "local", i):
                local = algorithm.local(w, server, state.memory.read(i, w))
            own = algorithm.full_gradient == "own"
            yield Problem(t, i, lr, state.w, local, own, algorithm.path_gradient)

    def _observe(self, state: RoundState, t: int, cohort: list[int], lr: float) -> State:
        """Phase A of MIME: the cohort's mean full gradient at w."""
        if self.setup.algorithm.full_gradient != "cohort":
            return state.server
        gradients = RunningMean()
        problems = [Problem(t, i, lr, state.w, None, full_gradient=True) for i in cohort]
        for problem, solution in self.pool.solve(problems):
            assert solution.gradient is not None
            gradients.add(solution.gradient, self.setup.weight(problem.client))
        with naming(t, "observe"):
            return self.setup.algorithm.observe(gradients.vector, state.server)


class Serial:
    """The pool that is this process."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    def solve(self, problems: Iterable[Problem]) -> Iterator[tuple[Problem, Solution]]:
        for problem in problems:
            with naming(problem.t, "local training", problem.client):
                solution = self._solver.solve(problem)
            yield problem, solution

    def close(self) -> None:
        """Nothing to let go."""
