"""Differential privacy of a round: clients' updates are clipped, and noise is added to their sum.

McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models*; the adaptive clip
is from Andrew et al. 2021, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import ceil, exp, inf, sqrt
from typing import Any, Literal, NamedTuple

import torch

from wima import algorithms
from wima.algorithms.base import Algorithm
from wima.algorithms.traffic import traffic
from wima.core.errors import UsageError, check, check_range, check_rate
from wima.core.randomness import rng
from wima.core.vector import Vector
from wima.simulation.options import Cohorts, RunOptions
from wima.simulation.task import Task

COUNT_NOISE = 1 / 20  # standard deviation of the count's noise / cohort (Andrew et al.)


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """The Gaussian mechanism, for cohorts of m clients on average.

        delta = (sum of delta_i * min(1, clip / |delta_i|)  +  noise * clip * N(0, I)) / m

    The sum is divided by m however many clients took part, so no client changes another's weight.

    clip: the largest norm of a client's update; with `quantile`, only in the first round.
    noise: the standard deviation of the noise in units of clip.  Alternatively, give epsilon: the
    least noise that keeps the run within (epsilon, delta) is computed.
    quantile: clip tracks this quantile of the updates' norms, at `rate`.  A noisy count of the
    updates within clip is then released too; the sum gets more noise, so that both together cost
    what `noise` alone would.

    Examples:
        >>> import wima
        >>> privacy = wima.Gaussian(clip=0.5, noise=1.2)
        >>> privacy.noises(20)  # on the sum, in units of clip, and on the count
        (1.2, 0.0)
    """

    clip: float | None = None
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    quantile: float | None = None
    rate: float = 0.2

    def __post_init__(self) -> None:
        check(
            self.clip is not None,
            "privacy needs clip, the largest norm of a client's update, for example "
            "privacy=gaussian:clip=0.5:noise=1.0.",
        )
        check_rate("clip", self.clip)
        check(
            (self.noise is None) != (self.epsilon is None),
            "privacy needs noise or epsilon, and not both, for example noise=1.0 or epsilon=8.",
        )
        if self.noise is not None:
            check_range("noise", self.noise, least=0)
        if self.epsilon is not None:
            check_rate("epsilon", self.epsilon)
        check(
            isinstance(self.delta, float) and 0 < self.delta < 1,
            f"delta must be between 0 and 1, and well below 1 / clients, got {self.delta!r}.",
        )
        if self.quantile is not None:
            check_range("quantile", self.quantile, least=0, most=1)
            check_rate("rate", self.rate)

    def noises(self, cohort: int) -> tuple[float, float]:
        """Standard deviations of the noise on the sum (in units of clip) and on the count.

        Shifted by 1/2, a client's entry in the count is at most 1/2: z^-2 = z_sum^-2 + (2 s)^-2.
        """
        z = self.noise or 0.0
        if self.quantile is None:
            return z, 0.0
        s = max(COUNT_NOISE * cohort, z)  # less than z / 2 would exceed the whole budget
        return (z / sqrt(1 - (z / (2 * s)) ** 2) if z else 0.0), s


class Released(NamedTuple):
    """The outputs of a round that privacy accounts for."""

    delta: Vector
    clip: float  # of the next round


class PrivateSum:
    """The sum of a round's clipped updates, in the order of the cohort."""

    def __init__(self, privacy: Gaussian, clip: float, cohort: int, like: Vector) -> None:
        self._privacy, self._clip, self._cohort = privacy, clip, cohort
        self._total, self._within = torch.zeros_like(like), 0

    def add(self, delta: Vector) -> None:
        norm = float(delta.norm())
        self._within += norm <= self._clip
        self._total.add_(delta, alpha=min(1.0, self._clip / norm) if norm else 1.0)

    def release(self, seed: int, t: int) -> Released:
        """The noisy mean; the noise is a function of (seed, t), so repeated calls agree."""
        on_sum, on_count = self._privacy.noises(self._cohort)
        draw = rng("privacy", seed, t)
        noise = torch.from_numpy(draw.standard_normal(len(self._total), dtype="float32"))
        total = self._total.add(noise.to(self._total), alpha=on_sum * self._clip)
        return Released(total / self._cohort, self._next_clip(on_count * draw.standard_normal()))

    def _next_clip(self, noise: float) -> float:
        privacy = self._privacy
        if privacy.quantile is None:
            return self._clip
        within = (self._within + noise) / self._cohort
        return self._clip * exp(-privacy.rate * (within - privacy.quantile))


BY_NAME: dict[str, type[Gaussian]] = {"gaussian": Gaussian}


LEAST, MOST = 0.01, 1000.0  # the range searched for the noise
DIGITS = 1000  # noise is rounded up to a multiple of 1 / DIGITS
RELATIONS = {
    "poisson": "one client more or less",
    "uniform": "one client in place of another",
}


class Sampling(NamedTuple):
    """How cohorts are drawn, which determines the bound and the definition of neighbouring data.

    poisson: each client takes part with probability cohort / clients; data sets are neighbours if
    one has one client more, which changes the sum by at most clip.
    uniform: cohorts of a fixed size without replacement; neighbours differ in one client, which
    changes the sum by at most 2 clip.  Theorem 27 of Wang, Balle and Kasiviswanathan 2019.
    """

    kind: Literal["poisson", "uniform"]
    cohort: int
    clients: int

    def round(self, noise: float) -> Any:
        """A round as an event of dp-accounting; noise: in units of clip."""
        dp = _accounting()
        if self.kind == "poisson":
            return dp.PoissonSampledDpEvent(self.cohort / self.clients, dp.GaussianDpEvent(noise))
        event = dp.GaussianDpEvent(noise / 2)
        return dp.SampledWithoutReplacementDpEvent(self.clients, self.cohort, event)

    def accountant(self) -> Any:
        dp = _accounting()
        add, replaced = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE
        return dp.rdp.RdpAccountant(
            neighboring_relation=add if self.kind == "poisson" else replaced
        )


class PrivacyAccountant:
    """The privacy that a run spends."""

    def __init__(self, privacy: Gaussian, sampling: Sampling) -> None:
        self.privacy, self.sampling = privacy, sampling
        if privacy.noise:
            one = sampling.accountant().compose(sampling.round(privacy.noise))
            self._orders, self._divergences = one._orders, one._rdp  # of one round; rounds add up

    def epsilon(self, rounds: int) -> float:
        """The epsilon after these rounds, for the mechanism's delta; infinite without noise."""
        if not self.privacy.noise:
            return inf
        spent = rounds * self._divergences
        return float(_accounting().rdp.compute_epsilon(self._orders, spent, self.privacy.delta)[0])

    def in_words(self, rounds: int) -> str:
        """The guarantee after these rounds."""
        kind, cohort, clients = self.sampling
        return (
            f"Privacy: epsilon = {self.epsilon(rounds):.4g} at delta = {self.privacy.delta:g} for "
            f"{RELATIONS[kind]}, after {rounds} rounds with noise {self.privacy.noise:g} and "
            f"{kind} cohorts of {cohort} of {clients} clients."
        )


def accountant_of(
    privacy: Gaussian, task: Task, algorithm: Algorithm, run: RunOptions, cohorts: Cohorts | str
) -> PrivacyAccountant:
    """A run's accountant; finds the noise if epsilon is given, raises if it cannot be private."""
    _check_possible(task, algorithm, run, cohorts)
    assert not callable(cohorts)
    kind: Literal["poisson", "uniform"] = "poisson" if cohorts == "poisson" else "uniform"
    sampling = Sampling(kind, run.clients_per_round, task.data.num_clients)
    if privacy.epsilon is not None:
        noise = least_noise(privacy.epsilon, privacy.delta, sampling, run.rounds)
        privacy = replace(privacy, noise=noise, epsilon=None)
    return PrivacyAccountant(privacy, sampling)


def least_noise(epsilon: float, delta: float, sampling: Sampling, rounds: int) -> float:
    """The least noise for which these rounds cost at most epsilon."""
    dp = _accounting()
    most, least = (
        PrivacyAccountant(Gaussian(clip=1.0, noise=noise, delta=delta), sampling).epsilon(rounds)
        for noise in (LEAST, MOST)
    )
    if most <= epsilon:
        return LEAST
    check(
        least <= epsilon,
        f"Even with a noise of {MOST:g} times clip, {rounds} rounds cost more than epsilon = "
        f"{epsilon:g} at delta = {delta:g}. Raise epsilon, or run fewer rounds.",
    )
    found = dp.calibrate_dp_mechanism(
        sampling.accountant,
        lambda noise: dp.SelfComposedDpEvent(sampling.round(noise), rounds),
        epsilon,
        delta,
        dp.ExplicitBracketInterval(LEAST, MOST),
        tol=1 / DIGITS,
    )
    return ceil(float(found) * DIGITS) / DIGITS


def _check_possible(
    task: Task, algorithm: Algorithm, run: RunOptions, cohorts: Cohorts | str
) -> None:
    name, known = type(algorithm).__name__, algorithms.BY_NAME.values()
    check(
        traffic(algorithm).up == 1,
        f"{name} cannot be private: its clients send more than their update, which would have to "
        f"be clipped too. {', '.join(k.__name__ for k in known if traffic(k()).up == 1)} can.",
    )
    check(
        task.trained is None or task.layout is None or task.trained == task.layout.size,
        "A model with running statistics (BatchNorm) cannot be private: they are averaged without "
        "noise. Use GroupNorm.",
    )
    check(
        run.weighting == "uniform",
        "privacy needs weighting=uniform: weighted by examples, one client could outweigh all "
        f"others; got weighting={run.weighting}.",
    )
    check(
        not callable(cohorts),
        "privacy needs cohorts 'uniform' or 'poisson'; accounting supports no others.",
    )


def _without_orders(record: logging.LogRecord) -> bool:
    """Drop messages about orders of the divergence that do not converge; enough others do."""
    return "Excluding this order" not in str(record.msg)


def _accounting() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]

        logging.getLogger("absl").addFilter(_without_orders)
    except ImportError:
        raise UsageError(
            "privacy needs dp-accounting, which is not installed: pip install 'wima[privacy]'"
        ) from None
    return dp_accounting
