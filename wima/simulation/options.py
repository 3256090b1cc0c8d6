"""What a user decides about a run: its options, and what they mean for each round.

Rounds and evaluation (`RunOptions`), local training (`LocalSGD`), clients that fail (`Faults`),
which clients take part (cohorts), and the learning rate over the rounds (schedules).  Settings use
all of these, so importing this module loads neither NumPy nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, cos, pi
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from wima.core import errors
from wima.core.errors import check
from wima.core.randomness import rng

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NOTHING: Mapping[str, Any] = MappingProxyType({})

Weighting: TypeAlias = Literal["examples", "uniform"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The number of rounds and clients, the learning rate, and how rounds are computed.

    eval_every: evaluate every n rounds, and after each of the last `eval_last` ones; 0: never.
    client_eval_every: evaluate on each client's own test examples, every n rounds and after the
    last one; 0: never.
    client_sample: the largest number of clients to evaluate, drawn once.
    calibration: also compare confidence with accuracy whenever models are evaluated.
    stack_server: allow a server optimizer after an algorithm that has its own server rule.
    diverged: end the run when the model's norm is not finite, or exceeds the initial model's norm
    (or 1, if that is larger) times this factor.
    """

    rounds: int = 500
    clients_per_round: int = 10
    lr: float = 0.1  # of the clients
    weighting: Weighting = "examples"
    seed: int = 0
    stack_server: bool = False
    eval_every: int = 1
    eval_last: int = 100
    client_eval_every: int = 0
    client_sample: int = 1000
    calibration: bool = False
    diverged: float = 1e4
    engine: str = "auto"
    workers: int | None = None  # processes that train, including this one

    def __post_init__(self) -> None:
        errors.check_count("rounds", self.rounds)
        errors.check_rate("lr", self.lr)
        errors.check_rate("diverged", self.diverged)
        for name in ("eval_every", "eval_last", "client_eval_every"):
            errors.check_count(name, getattr(self, name), least=0)
        errors.check_count("client_sample", self.client_sample)
        seed = self.seed
        check(
            errors.is_count(seed, 0) and seed < 2**32,
            f"seed must be in 0 ... 2**32 - 1, got {seed!r}.",
        )
        errors.check_one_of("weighting", self.weighting, ("examples", "uniform"))
        if self.workers is not None:
            errors.check_count("workers", self.workers)

    def evaluates(self, t: int) -> bool:
        """Whether models are evaluated after t rounds."""
        every, late = self.eval_every, t > self.rounds - max(1, self.eval_last)
        return self.evaluates_clients(t) or (every > 0 and (t % every == 0 or late))

    def evaluates_clients(self, t: int) -> bool:
        """Whether models are evaluated for each client after t rounds."""
        every = self.client_eval_every
        return every > 0 and (t % every == 0 or t == self.rounds)


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """How clients train, whatever the algorithm.

    batch_size "full" means all of a client's examples.  A visit has ceil(epochs * N_i / batch_size)
    steps, or `steps` if given.  last_batch "fill" completes the last batch from a new shuffle, so
    that all batches have the same size; "short" leaves it short, as PyTorch's loaders do.
    """

    batch_size: int | Literal["full"] = 10
    epochs: int = 1
    steps: int | None = None
    last_batch: Literal["fill", "short"] = "fill"
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None  # largest norm of a step's direction

    def __post_init__(self) -> None:
        if self.batch_size != "full":
            errors.check_count("batch_size", self.batch_size)
        errors.check_count("epochs", self.epochs)
        if self.steps is not None:
            errors.check_count("steps", self.steps)
        errors.check_one_of("last_batch", self.last_batch, ("fill", "short"))
        errors.check_range("weight_decay", self.weight_decay, least=0)
        errors.check_range("client momentum", self.momentum, least=0, below=1)
        if self.clip is not None:
            errors.check_range("clip", self.clip, above=0)

    def whole_steps(self, n: int) -> int | None:
        """The number of steps of a visit, if each of them sees all n examples."""
        size = self.size(n)
        full = size == n or (size > n and self.last_batch == "short")
        return (self.steps or self.epochs) if full else None

    def size(self, n: int) -> int:
        """The mini-batch size of a client with n examples."""
        return n if self.batch_size == "full" else self.batch_size

    def count(self, n: int) -> int:
        """The number of steps of a visit to a client with n examples."""
        size = self.size(n)
        if self.last_batch == "short":
            return self.steps or self.epochs * ceil(n / size)
        return self.steps or ceil(self.epochs * n / size)

    def plan(self, n: int, random: np.random.Generator) -> list[npt.NDArray[np.int64]]:
        """The indices of the examples in each step: successive permutations, cut into batches."""
        import numpy as np

        size, steps = self.size(n), self.count(n)
        if self.last_batch == "short":
            orders = [random.permutation(n) for _ in range(ceil(steps / ceil(n / size)))]
            return [order[i : i + size] for order in orders for i in range(0, n, size)][:steps]
        orders = [random.permutation(n) for _ in range(ceil(steps * size / n))]
        return list(np.concatenate(orders)[: steps * size].reshape(steps, size))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """dropout: the probability that a client of the cohort never answers.

    stragglers: the probability that a client stops early, after a share of its steps drawn
    uniformly between 0 and 1, and after at least one step.
    exclude: leave out clients that send or would remember a vector that is not finite; otherwise
    the run ends as diverged.
    """

    dropout: float = 0.0
    stragglers: float = 0.0
    exclude: bool = False

    def __post_init__(self) -> None:
        errors.check_range("dropout", self.dropout, least=0, most=1)
        errors.check_range("stragglers", self.stragglers, least=0, most=1)
        errors.check_switch("exclude", self.exclude)

    def survivors(self, seed: int, t: int, cohort: list[int]) -> list[int]:
        """The clients of the cohort that answer."""
        if not self.dropout:
            return cohort
        return [i for i in cohort if rng("faults", seed, t, i).random() >= self.dropout]

    def share(self, seed: int, t: int, client: int) -> float:
        """The share of its steps that a client finishes."""
        if not self.stragglers:
            return 1.0
        _, stops, share = rng("faults", seed, t, client).random(3)
        return float(share) if stops < self.stragglers else 1.0


Cohorts: TypeAlias = Callable[[int, int], Sequence[int]]  # (seed, t) -> clients


def uniform_cohorts(num_clients: int, clients_per_round: int) -> Cohorts:
    """Clients drawn without replacement: a function of (seed, t), the same for every algorithm."""

    def cohort(seed: int, t: int) -> list[int]:
        drawn = rng("cohort", seed, t).choice(num_clients, clients_per_round, replace=False)
        return sorted(drawn.tolist())

    return cohort


def poisson_cohorts(num_clients: int, clients_per_round: int) -> Cohorts:
    """Each client takes part with the same probability, independently of the others.

    The size of a cohort varies around clients_per_round and can be 0.
    """

    def cohort(seed: int, t: int) -> list[int]:
        draw = rng("cohort", seed, t)
        size = draw.binomial(num_clients, clients_per_round / num_clients)
        return sorted(draw.choice(num_clients, size, replace=False).tolist())

    return cohort


COHORTS = {"uniform": uniform_cohorts, "poisson": poisson_cohorts}


def make_cohorts(given: Cohorts | str, num_clients: int, clients_per_round: int) -> Cohorts:
    """Cohorts by the name of a rule, or from a user's function, whose results are checked."""
    errors.check_count("clients_per_round", clients_per_round)
    check(
        clients_per_round <= num_clients,
        f"clients_per_round must be at most the number of clients, {num_clients}, "
        f"got {clients_per_round}.",
    )
    if not callable(given):
        if given not in COHORTS:
            raise errors.unknown("cohorts", given, COHORTS)
        return COHORTS[given](num_clients, clients_per_round)

    def cohort(seed: int, t: int) -> list[int]:
        drawn = list(given(seed, t))
        with suppress(TypeError):  # from a number that is not whole
            drawn = [index(client) for client in drawn]
        check(
            0 < len(set(drawn)) == len(drawn) <= clients_per_round
            and all(isinstance(client, int) and 0 <= client < num_clients for client in drawn),
            f"The cohort of round {t} must be 1 to {clients_per_round} different clients in 0 ... "
            f"{num_clients - 1}, got {drawn}.",
        )
        return drawn

    return cohort


class Schedule(Protocol):
    """A factor of lr for each round t = 0 ... rounds - 1."""

    def factor(self, t: int, rounds: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate in every round."""

    def factor(self, t: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """The rate is multiplied by `decay` after each round."""

    decay: float = 0.998

    def __post_init__(self) -> None:
        errors.check_range("Exponential.decay", self.decay, above=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return float(self.decay**t)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine wave, from 1 in the first round down to `final` after the last."""

    final: float = 0.0

    def __post_init__(self) -> None:
        errors.check_range("Cosine.final", self.final, least=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return self.final + (1 - self.final) * (1 + cos(pi * t / rounds)) / 2


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """SWA's cycles: constant until `start`, then falling to `low` in every cycle.

    phase "fedsam" counts cycles from round 0, as in the code of Caldarola et al. (2022);
    "izmailov" counts from `start`, as in Izmailov et al. (2018).  A cycle of 1 keeps the rate
    constant.
    """

    start: float = 0.75  # a round, or a share of all rounds if less than 1
    cycle: int = 10
    low: float = 0.01
    phase: errors.Phase = "fedsam"

    def __post_init__(self) -> None:
        errors.check_start("Cyclic.start", self.start)
        errors.check_count("Cyclic.cycle", self.cycle)
        errors.check_range("Cyclic.low", self.low, above=0, most=1)
        errors.check_one_of("Cyclic.phase", self.phase, ("fedsam", "izmailov"))

    def factor(self, t: int, rounds: int) -> float:
        start = errors.start_round("Cyclic.start", self.start, rounds)
        if t < start or self.cycle == 1:
            return 1.0
        place = t if self.phase == "fedsam" else t - start
        a = (place % self.cycle + 1) / self.cycle
        return (1 - a) + a * self.low


SCHEDULES: dict[str, type[Any]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "cyclic": Cyclic,
}
