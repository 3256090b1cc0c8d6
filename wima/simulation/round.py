"""The round of the engines: problems, the clients' visits, their means, the server's step.

    problems = [algorithm.local(w, server, client_i) for i in cohort]
    visits   = engine.solve(problems)                          # the only thing an engine must do
    means    = [visit.delta and what client_finish sends, averaged over the cohort]
    w        = w - ServerOpt(algorithm.server_update(w, *means))

Its plain twin is in `reference.py`; tests compare the two bit for bit.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, State, Visit
from wima.algorithms.server_opt import OptState, ServerOpt
from wima.core.errors import RunError, UsageError
from wima.core.vector import Vector, vectors
from wima.simulation.clients import ClientMemory
from wima.simulation.local import Problem, Solved, Solver, located, untouched
from wima.simulation.measures.job import EvaluationJob
from wima.simulation.options import Faults, LocalSGD, Weighting
from wima.simulation.privacy import Gaussian, PrivateSum, remembers
from wima.simulation.task import Task


class RoundState(NamedTuple):
    """Everything that a round changes.  `memory` is changed in place, the rest is replaced."""

    w: Vector
    server: State
    opt: OptState
    memory: ClientMemory
    excluded: tuple[int, ...] = ()  # clients of the last round whose updates were not finite
    client_gradient: Vector | None = None  # mean of `client_gradient_of` in the last round
    clip: float | None = None  # of the next round, with differential privacy


class Setup(NamedTuple):
    """Everything that stays the same during a run."""

    task: Task
    algorithm: Algorithm
    server_opt: ServerOpt
    sgd: LocalSGD
    weighting: Weighting
    seed: int
    faults: Faults = Faults()
    wants_client_gradient: bool = False  # for averages that judge windows by it
    privacy: Gaussian | None = None
    cohort: int = 1  # clients per round, on average

    def weight(self, client: int) -> float:
        """The weight of a client's delta, before division by the cohort's sum."""
        return float(self.task.data.size(client)) if self.weighting == "examples" else 1.0

    def private_sum(self, state: RoundState) -> PrivateSum | None:
        """An empty sum for the round's updates; None without differential privacy."""
        if self.privacy is None or state.clip is None:
            return None
        return PrivateSum(self.privacy, state.clip, self.cohort, state.w[: self.task.trained])

    def usable(self, *sent: Any) -> bool:
        """Whether a client's update can be used: with `exclude`, only if all of it is finite."""
        return not self.faults.exclude or all(is_finite(vector) for vector in vectors(sent))


class Means(NamedTuple):
    """What the server learns in a round."""

    delta: Vector
    clients: int
    extra: Extra = None  # None if clients sent only deltas
    rest: Vector | None = None  # start - end of the rest of w; None if there is no rest
    client_gradient: Vector | None = None  # see `RoundState`; None if not requested
    clip: float | None = None  # see `RoundState`


class Engine:
    """Runs rounds and evaluates models.  An engine must only `solve`; all else has a default."""

    name: str
    why = ""  # the reason why `auto` chose it
    runs_ahead = False  # whether `prefetch` does anything
    is_worker_rank = False  # whether another process runs the rounds, see `serve`

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._begun: list[Problem] = []  # the first problems of a round to come
        # Clients without memory that send only their delta all have the same problem.
        self._alike = not remembers(setup.algorithm)

    @cached_property
    def solver(self) -> Solver:
        """Solves problems in this process."""
        return Solver(self.setup.task, self.setup.sgd, self.setup.seed)

    def solve_here(self, problem: Problem) -> Solved:
        """Solve a problem in this process; errors name the round and the client."""
        with located(problem.t, "local training", problem.client):
            return self.solver.solve(problem)

    def solve(self, problems: list[Problem]) -> Iterable[Solved]:
        """The clients' visits, in the order of the problems."""
        raise NotImplementedError

    def prefetch(self, problems: list[Problem]) -> None:
        """Start on the problems that `solve` will be given next."""

    def mean_delta(self, problems: list[Problem]) -> Vector | None:
        """The weighted mean of the deltas, if it costs less than all visits; None: it does not."""
        return None

    def evaluate(self, evaluation: EvaluationJob, models: list[Vector]) -> list[Any]:
        """The answers of all pieces, in order."""
        return [evaluation.answer(self.solver, piece, models) for piece in evaluation.pieces]

    def serve(self) -> bool:
        """Work for the process that runs the rounds until the run ends; False in that process."""
        return False

    def close(self) -> None:
        """Stop the workers, if any."""

    def begin(self, state: RoundState, t: int, cohort: list[int], lr: float) -> None:
        """Start on the next round, which `round` will request: workers need not wait for it."""
        try:
            self._begun = self._first_problems(state, t, cohort, lr)
        except RunError:  # the round itself will report it
            return
        self.prefetch(self._begun)

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        """The state after round t."""
        setup, server = self.setup, state.server
        w = state.w[: setup.task.trained]
        rest = state.w[len(w) :]  # BatchNorm's statistics: no algorithm sees them

        # Each client of the cohort gets a problem.  It depends only on the state before the round,
        # so workers may have begun on it while the models of the last round were evaluated.
        problems, self._begun = self._begun, []
        if not problems or problems[0].t != t or problems[0].w is not state.w:
            problems = self._first_problems(state, t, cohort, lr)

        # MIME's server needs the cohort's mean full gradient at w before the clients train.
        # A client whose gradient is not usable takes no further part in the round.
        gradient = None
        if setup.algorithm.full_gradient == "cohort":
            mean, usable = RunningMean(), []
            for problem, (visit, _) in self._visits(problems):
                if setup.usable(visit.gradient):
                    usable.append(problem.client)
                    mean.add(visit.gradient, setup.weight(problem.client))
            gradient = mean.value
            server = observed(setup, server, t, gradient)
            problems = self._problems(state, server, t, usable, lr)

        # The engine solves the problems, in this process or elsewhere.  The clients' own hook and
        # the sums run here, in the order of the cohort, so that every engine gives the same bytes.
        included = [problem.client for problem in problems]
        means = self._mean_alone(problems)
        if means is None:
            updates, included = Updates(setup, state), []
            for problem, (visit, end_rest) in self._visits(problems):
                if not setup.usable(visit, end_rest):
                    continue
                i, delta = problem.client, visit.delta
                with located(t, "client_finish", i):
                    extra, memory = setup.algorithm.client_finish(visit, server, problem.memory)
                moved = rest - end_rest if len(rest) else None
                if not setup.usable(delta, moved, extra, memory):
                    continue
                included.append(i)
                state.memory.write(i, memory)  # takes effect when the round has succeeded
                wants = setup.wants_client_gradient
                own = client_gradient_of(visit, problem.local) if wants else None
                updates.add(setup.weight(i), delta, extra=extra, rest=moved, client_gradient=own)
            means = updates.means(t)

        # The server steps with the means.  Without any usable update, the model stays as it is.
        excluded = tuple(i for i in cohort if i not in included)
        return step(setup, state, server, means, t, gradient)._replace(excluded=excluded)

    def _first_problems(
        self, state: RoundState, t: int, cohort: list[int], lr: float
    ) -> list[Problem]:
        """MIME's rounds begin with full gradients at w, all others with training."""
        if self.setup.algorithm.full_gradient != "cohort":
            return self._problems(state, state.server, t, cohort, lr)
        return [
            Problem(t=t, client=i, lr=lr, w=state.w, local=None, full_gradient=True) for i in cohort
        ]

    def _problems(
        self, state: RoundState, server: State, t: int, cohort: list[int], lr: float
    ) -> list[Problem]:
        setup, algorithm, w = self.setup, self.setup.algorithm, state.w[: self.setup.task.trained]
        problems, local, memory = [], None, ()
        for i in cohort:
            if local is None or not self._alike:
                with located(t, "local", i):
                    memory = state.memory.read(i, w)
                    local = algorithm.local(w, server, memory)
            problem = Problem(
                t=t,
                client=i,
                lr=lr,
                w=state.w,
                local=local,
                full_gradient=algorithm.full_gradient == "own",
                path_gradient=algorithm.path_gradient,
                share=setup.faults.share(setup.seed, t, i),
                memory=memory,
            )
            problems.append(problem)
        return problems

    def _visits(self, problems: list[Problem]) -> Iterator[tuple[Problem, Solved]]:
        return zip(problems, self.solve(problems) if problems else (), strict=True)

    def _mean_alone(self, problems: list[Problem]) -> Means | None:
        """The means, if the engine can compute them without visits and nothing else is needed."""
        setup = self.setup
        if not problems or not self._alike or setup.faults.exclude or setup.privacy is not None:
            return None
        if setup.wants_client_gradient and _shift(problems[0].local) is not None:
            return None
        delta = self.mean_delta(problems)
        if delta is None:
            return None
        return Means(delta=delta, clients=len(problems), client_gradient=delta)


class Serial(Engine):
    """Solves problems in this process, one after another."""

    name = "serial"

    def solve(self, problems: list[Problem]) -> Iterator[Solved]:
        return map(self.solve_here, problems)


def client_gradient_of(visit: Visit, local: Local | None) -> Vector:
    """The client's own view of w: its full gradient at w, if it computed one.

    Otherwise its delta minus the contribution of the problem's shift, which is an old direction.
    """
    if visit.gradient is not None:
        return visit.gradient  # type: ignore[no-any-return]
    delta, shift = visit.delta, _shift(local)
    return delta if shift is None else delta.sub_(shift * (visit.lr * visit.steps))


def _shift(local: Local | None) -> Vector | None:
    """The problem's shift; None if it has none or a number."""
    return local.shift if local is not None and isinstance(local.shift, torch.Tensor) else None


class Updates:
    """The clients' updates, summed in the order of the cohort."""

    def __init__(self, setup: Setup, state: RoundState) -> None:
        self._setup, self._private, self._clients = setup, setup.private_sum(state), 0
        self._sums = {n: RunningMean() for n in ("delta", "extra", "rest", "client_gradient")}

    def add(self, weight: float, delta: Vector, **sent: Vector | None) -> None:
        """Add a client's update.  sent: extra, rest, and client_gradient, by default its delta."""
        self._clients += 1
        if self._private is not None:  # then clients send only deltas
            self._private.add(delta)
            return
        if self._setup.wants_client_gradient and sent.get("client_gradient") is None:
            sent["client_gradient"] = delta
        for name, vector in {"delta": delta, **sent}.items():
            uniform = name == "extra" and self._setup.algorithm.extra_mean == "uniform"
            if vector is not None:
                self._sums[name].add(vector, 1.0 if uniform else weight)

    def means(self, t: int) -> Means | None:
        """None if no client sent anything; privacy conceals this case."""
        if self._private is not None:
            mean, clip = self._private.release(self._setup.seed, t)
            own = mean if self._setup.wants_client_gradient else None
            return Means(delta=mean, clients=self._setup.cohort, client_gradient=own, clip=clip)
        means: dict[str, Any] = {name: total.value for name, total in self._sums.items()}
        return Means(clients=self._clients, **means) if means["delta"] is not None else None


def observed(setup: Setup, server: State, t: int, gradient: Vector | None) -> State:
    """MIME's server after it observed the cohort's mean full gradient, if there is one."""
    if gradient is None:
        return server
    with located(t, "observe"):
        return setup.algorithm.observe(gradient, server)


def step(
    setup: Setup,
    state: RoundState,
    server: State,
    means: Means | None,
    t: int,
    full_gradient: Vector | None = None,
) -> RoundState:
    """The state after the round: w - ServerOpt(pseudo-gradient); the rest of w as in FedAvg.

    full_gradient: the cohort's mean at w, if the algorithm asked for it.
    """
    if means is None:
        return state._replace(client_gradient=None)
    w = state.w[: setup.task.trained]
    rest = state.w[len(w) :]
    fraction = means.clients / setup.task.data.num_clients
    with located(t, "server_update"):
        gradient, server = setup.algorithm.server_update(
            w, means.delta, means.extra, server, fraction
        )
        check_shape(gradient, w)
    change, opt = setup.server_opt.update(gradient, state.opt)
    if means.rest is not None:
        rest = rest - means.rest
    return RoundState(
        w=torch.cat([w - change, rest]),
        server=server,
        opt=opt,
        memory=state.memory,
        client_gradient=means.client_gradient if full_gradient is None else full_gradient,
        clip=means.clip,
    )


def first_state(setup: Setup, **storage: Any) -> RoundState:
    """The state before round 0; storage: where clients' memory is kept, see `ClientMemory`."""
    w = setup.task.init(setup.seed)
    trained = w[: setup.task.trained]
    memory = ClientMemory(setup.algorithm.client_init, **storage)
    with located(0, "init"), untouched(w):
        server = setup.algorithm.init(trained)
    clip = setup.privacy.clip if setup.privacy else None
    return RoundState(
        w=w, server=server, opt=setup.server_opt.init(trained), memory=memory, clip=clip
    )


def check_shape(vector: Any, like: Vector) -> None:
    """Raise unless a hook returned a vector that fits the model."""
    shape = tuple(vector.shape) if isinstance(vector, torch.Tensor) else type(vector).__name__
    if shape != tuple(like.shape):
        raise UsageError(f"expected shape {tuple(like.shape)}, got {shape}.")


def is_finite(vector: Vector) -> bool:
    """Whether no entry is infinite or NaN."""
    return bool(torch.isfinite(vector).all())


class RunningMean:
    """A weighted mean: summed in order of arrival, divided once."""

    def __init__(self) -> None:
        self._total: Vector | None = None
        self._weight = 0.0

    def add(self, vector: Vector, weight: float = 1.0) -> None:
        if self._total is None:
            self._total = torch.zeros_like(vector)
        self._total.add_(vector, alpha=weight)
        self._weight += weight

    @property
    def value(self) -> Vector | None:
        """The mean; None if nothing was added."""
        return None if self._total is None else self._total / self._weight
