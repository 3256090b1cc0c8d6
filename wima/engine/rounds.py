"""The round as fast engines play it: hooks here, local problems wherever the pool solves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from wima.algorithms.base import Algorithm, Extra, State, Visit
from wima.core.errors import RunError
from wima.core.vector import Vector
from wima.engine.base import RoundState, RunningMean, Setup, evaluate_here, is_finite, naming
from wima.engine.local import Problem, Solution, Solver
from wima.task.evaluation import Metrics


class Pool(Protocol):
    """Solves problems; each comes back, in order, with its solution."""

    def begin(self, problems: list[Problem]) -> None:
        """The same list is going to be solved next: a pool may start on it."""

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]: ...

    def close(self) -> None: ...


@runtime_checkable
class Averages(Protocol):
    """A pool that can hand out the mean of the deltas alone."""

    def mean_delta(self, problems: list[Problem], weights: list[float]) -> Vector: ...


class Means(NamedTuple):
    """What the server gets of a round."""

    delta: Vector
    extra: Extra
    rest: Vector  # where the rest of w ends
    excluded: tuple[int, ...] = ()


class Opening(NamedTuple):
    """The first problems of a round, which need no other's solution."""

    t: int
    w: Vector
    problems: list[Problem]


@runtime_checkable
class Evaluates(Protocol):
    """A pool that can evaluate models too."""

    can_evaluate: bool

    def evaluate(self, models: dict[str, Vector]) -> dict[str, Metrics]: ...


class Pooled:
    """An engine made of a pool.  Same bytes as `Reference`, whatever the pool."""

    runs_ahead = True

    def __init__(self, name: str, setup: Setup, pool: Pool) -> None:
        self.name, self.setup, self.pool = name, setup, pool
        self._begun: Opening | None = None
        hooks = ("client_init", "client_finish")
        mine, base = type(setup.algorithm), Algorithm
        # Then clients have no memory, send their delta alone, and all get the same problem.
        self._alike = all(getattr(mine, hook) is getattr(base, hook) for hook in hooks)
        means_do = self._alike and not setup.faults.exclude
        self._averages = pool if means_do and isinstance(pool, Averages) else None

    def close(self) -> None:
        self.pool.close()

    def evaluate(self, models: dict[str, Vector]) -> dict[str, Metrics]:
        if isinstance(self.pool, Evaluates) and self.pool.can_evaluate:
            return self.pool.evaluate(models)
        return evaluate_here(self.setup.task, models)

    def begin(self, state: RoundState, t: int, cohort: list[int], lr: float) -> None:
        """Let the pool start on a round that is going to be played next from this state."""
        try:
            self._begun = self._opening(state, t, cohort, lr)
        except RunError:  # the round itself will say so
            return
        self.pool.begin(self._begun.problems)

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        begun, self._begun = self._begun, None
        if begun is None or begun.t != t or begun.w is not state.w:
            begun = self._opening(state, t, cohort, lr)
        server, problems = state.server, begun.problems
        if self.setup.algorithm.full_gradient == "cohort":
            server = self._observe(problems, t, server)
            problems = self._problems(state, server, t, cohort, lr)
        return self._finish(state, server, problems, t, lr)

    def _opening(self, state: RoundState, t: int, cohort: list[int], lr: float) -> Opening:
        """MIME's round opens with full gradients at w, any other with training."""
        if self.setup.algorithm.full_gradient == "cohort":
            problems = [Problem(t, i, lr, state.w, None, full_gradient=True) for i in cohort]
        else:
            problems = self._problems(state, state.server, t, cohort, lr)
        return Opening(t, state.w, problems)

    def _observe(self, problems: list[Problem], t: int, server: State) -> State:
        """Phase A of MIME: the cohort's mean full gradient at w."""
        gradients = RunningMean()
        for problem, solution in self.pool.solve(problems):
            assert solution.gradient is not None
            gradients.add(solution.gradient, self.setup.weight(problem.client))
        with naming(t, "observe"):
            return self.setup.algorithm.observe(gradients.vector, server)

    def _problems(
        self, state: RoundState, server: State, t: int, cohort: list[int], lr: float
    ) -> list[Problem]:
        algorithm, w = self.setup.algorithm, state.w[: self.setup.trained]
        own, problems, local = algorithm.full_gradient == "own", [], None
        for i in cohort:
            if local is None or not self._alike:
                with naming(t, "local", i):
                    local = algorithm.local(w, server, state.memory.read(i, w))
            share = self.setup.faults.share(self.setup.seed, t, i)
            problems.append(Problem(t, i, lr, state.w, local, own, algorithm.path_gradient, share))
        return problems

    def _finish(
        self, state: RoundState, server: State, problems: list[Problem], t: int, lr: float
    ) -> RoundState:
        """Train, and step with the means."""
        setup, algorithm = self.setup, self.setup.algorithm
        w = state.w[: setup.trained]
        rest = state.w[len(w) :]
        if self._averages is not None:
            weights = [setup.weight(p.client) for p in problems]
            means: Means | None = Means(self._averages.mean_delta(problems, weights), None, rest)
        else:
            means = self._visits(state, server, problems, t, lr)
        if means is None:
            return state._replace(excluded=tuple(p.client for p in problems))
        delta, extra, rest, excluded = means
        fraction = (len(problems) - len(excluded)) / setup.task.data.num_clients
        with naming(t, "server_update"):
            gradient, server = algorithm.server_update(w, delta, extra, server, fraction)
        step, opt = setup.server_opt.update(gradient, state.opt)
        return RoundState(torch.cat([w - step, rest]), server, opt, state.memory, excluded)

    def _visits(
        self, state: RoundState, server: State, problems: list[Problem], t: int, lr: float
    ) -> Means | None:
        """Each client's visit, and the means over them; None if all had to be excluded."""
        setup, algorithm = self.setup, self.setup.algorithm
        w = state.w[: setup.trained]
        rest = state.w[len(w) :]
        deltas, extras, rests, excluded = RunningMean(), RunningMean(), RunningMean(), []
        for problem, solution in self.pool.solve(problems):
            assert problem.local is not None and solution.end is not None
            i, end = problem.client, solution.end
            if setup.faults.exclude and not is_finite(end):
                excluded.append(i)
                continue
            start, weight = problem.local.start, setup.weight(i)
            visit = Visit(start, end[: len(w)], solution.steps, lr, t, *solution[2:])
            with naming(t, "client_finish", i):
                extra, client = algorithm.client_finish(visit, server, state.memory.read(i, w))
            state.memory.write(i, client)
            deltas.add(visit.delta, weight)
            if len(rest):
                rests.add(rest - end[len(w) :], weight)
            if extra is not None:
                extras.add(extra, weight if algorithm.extra_mean == "weighted" else 1.0)
        if deltas.value is None:
            return None
        rest = rest - rests.vector if len(rest) else rest
        return Means(deltas.vector, extras.value, rest, tuple(excluded))


class Serial:
    """The pool that is this process."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver

    def begin(self, problems: list[Problem]) -> None:
        """Nothing runs beside this process."""

    def solve(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solution]]:
        for problem in problems:
            with naming(problem.t, "local training", problem.client):
                solution = self._solver.solve(problem)
            yield problem, solution

    def close(self) -> None:
        """Nothing to let go."""
