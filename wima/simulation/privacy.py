"""Differential privacy of a round: clients' updates are clipped, and noise is added to their sum.

McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models*; the adaptive clip
is from Andrew et al. 2021, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1.
What a run costs is computed from the distribution of its privacy loss.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, erfc, exp, expm1, fsum, inf, isclose, isfinite, log, log1p, log2, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wima import algorithms
from wima.algorithms.base import Algorithm
from wima.algorithms.traffic import traffic
from wima.core.errors import check, check_range, check_rate
from wima.core.randomness import rng
from wima.core.vector import Vector
from wima.simulation.options import Cohorts, RunOptions
from wima.simulation.task import Task

Array = npt.NDArray[Any]

COUNT_NOISE = 1 / 20  # standard deviation of the count's noise / cohort (Andrew et al.)
ROUNDING = 1e-4  # accounted for: by how much float32 may let an update exceed clip
CLIPS = 1e-15, 1e15  # an adaptive clip stays between them: its square is a normal float32


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """The Gaussian mechanism, for cohorts of m clients on average.

        delta = (sum of delta_i * min(1, clip / |delta_i|)  +  noise * clip * N(0, I)) / m

    The sum is divided by m however many clients took part, so no client changes another's weight.

    clip: the largest norm of a client's update; with `quantile`, only in the first round.
    noise: the standard deviation of the noise in units of clip.  Alternatively, give epsilon: the
    least noise that keeps the run within (epsilon, delta) is computed.
    quantile: clip tracks this quantile of the updates' norms, at `rate`.  A noisy count of the
    updates within clip, shifted by half the number of updates, is then released too; the sum gets
    more noise, so that both together cost what `noise` alone would.
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

        A client changes the sum by at most clip, and the shifted count by at most 1/2 (in place of
        another: twice that).  Both together cost what z alone would: z^-2 = z_sum^-2 + (2 s)^-2.
        """
        z = self.noise or 0.0
        if self.quantile is None:
            return z, 0.0
        s = max(COUNT_NOISE * cohort, z)  # less than z / 2 would exceed the whole budget
        return (z / sqrt(1 - (z / (2 * s)) ** 2) if z else 0.0), s


class PrivateSum:
    """The sum of a round's clipped updates, in the order of the cohort.

    The count of updates within clip is shifted: a client adds 1/2 or -1/2, and 0 if it is absent.
    """

    def __init__(self, privacy: Gaussian, clip: float, cohort: int, like: Vector) -> None:
        self._privacy, self._clip, self._cohort = privacy, clip, cohort
        self._total, self._count = torch.zeros_like(like), 0.0

    def add(self, delta: Vector) -> None:
        norm = norm_of(delta)
        self._count += 1 / 2 if norm <= self._clip else -1 / 2
        # An update that is not finite adds nothing.  In the sum, it would reveal that its client
        # took part.
        if isfinite(norm):
            self._total.add_(delta, alpha=min(1.0, self._clip / norm) if norm else 1.0)

    def release(self, seed: int, t: int) -> tuple[Vector, float]:
        """The noisy mean and the next clip; a function of (seed, t), so repeated calls agree."""
        on_sum, on_count = self._privacy.noises(self._cohort)
        draw = rng("privacy", seed, t)
        noise = torch.from_numpy(draw.standard_normal(len(self._total), dtype="float32"))
        mean = self._total.add(noise.to(self._total), alpha=on_sum * self._clip) / self._cohort
        if self._privacy.quantile is None:
            return mean, self._clip
        # sum(b - 1/2) / m + 1/2: how many clients took part is private, so m stands for them.
        count = self._count + self._cohort / 2 + on_count * draw.standard_normal()
        change = -self._privacy.rate * (count / self._cohort - self._privacy.quantile)
        least, most = (log(clip / self._clip) for clip in CLIPS)
        return mean, self._clip * exp(min(max(change, least), most))


def norm_of(delta: Vector) -> float:
    """The norm of an update, to within half of `ROUNDING`; infinite or NaN if an entry is.

    In float32, a sum of millions of squares loses up to 1 %, and squares overflow or underflow: so
    few are summed at a time, and all in float64 if they are far from 1.
    """
    norm = float(delta.norm())
    squares = fsum(float(part.dot(part)) for part in torch.split(delta, 2**14))
    exact = sqrt(squares) if 1e-20 < squares < 1e30 else float(delta.double().norm())
    return norm if isclose(norm, exact, rel_tol=ROUNDING / 2) else exact


BY_NAME: dict[str, type[Gaussian]] = {"gaussian": Gaussian}


LEAST, MOST = 0.01, 1000.0  # the range of noise that is accounted for
COARSE, FINE = 256, 512  # half the points of the grids of privacy losses, for 500 rounds
ORDERS = np.geomspace(1e-4, 1e4, 80)  # of moments, in units of 1 / the largest loss
FFT_ERROR = 1e-15  # of delta, for each round
SPARE = 1e-4  # the share of delta spared for losses beyond the grid
DIGITS = 1000  # noise is rounded up to a multiple of 1 / DIGITS
RELATIONS = {"poisson": "one client more or less", "uniform": "one client in place of another"}


class Sampling(NamedTuple):
    """How cohorts are drawn, which determines the bound and the definition of neighbouring data.

    poisson: each client takes part with probability cohort / clients; data sets are neighbours if
    one has one client more, which changes the sum by at most clip.
    uniform: cohorts of a fixed size without replacement; neighbours differ in one client, which
    changes the sum by at most 2 clip.
    hidden: whether who took part stays hidden.  With clients that remember, later updates depend on
    who took part.  In Poisson cohorts, that says nothing about one client, in others it does.
    """

    kind: Literal["poisson", "uniform"]
    cohort: int
    clients: int
    hidden: bool = True

    @property
    def reach(self) -> int:
        """The largest change of the sum by one client, in units of clip."""
        return 1 if self.kind == "poisson" else 2

    def distance(self, noise: float) -> float:
        """The same in standard deviations of the noise."""
        return self.reach * (1 + ROUNDING) / noise

    def losses(self, noise: float, step: float, half: int) -> list[Loss]:
        """The losses of a round, each to be composed with itself; the worst of the sums counts.

        poisson: the data with a client against those without it, and the reverse.
        uniform: in each round, either of the two data sets may be the one that stands out.  The
        loss is that of one order above 0 and of the other below 0, so that it bounds both: Balle,
        Barthe and Gaboardi 2018, *Privacy Amplification by Subsampling*, and Zhu, Dong and Wang
        2022, *Optimal Accounting of Differential Privacy via Characteristic Function*.
        not hidden: no loss in rounds without the client, and that of all clients' sum in others.
        """
        chance = self.cohort / self.clients
        if not self.hidden:
            p, _, above, _ = sampled_gaussian(self.distance(noise), 1.0, step, half)
            p *= chance
            p[half] += 1 - chance
            return [Loss(p, step, above * chance)]
        p, q, above, below = sampled_gaussian(self.distance(noise), chance, step, half)
        if self.kind == "poisson":
            return [Loss(p, step, above), Loss(q[::-1], step, below)]
        either = np.concatenate([q[:half:-1], [0.0], p[half + 1 :]])
        either[half] = max(0.0, 1 - either.sum() - above)
        return [Loss(either, step, above)]


def sampled_gaussian(
    distance: float, chance: float, step: float, half: int
) -> tuple[Array, Array, float, float]:
    """Masses of P = (1 - chance) N(0, 1) + chance N(distance, 1) and of Q = N(0, 1), by their loss.

    The loss log(dP / dQ) is rounded to -half * step, ..., half * step.  Each interval's masses go
    to its two ends such that both are kept, which makes P and Q no harder to tell apart: Doroshenko
    et al. 2022, *Connect the Dots*.  Also returns P's mass above the grid and Q's below it.
    """
    losses = step * np.arange(-half, half + 1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        odds = np.maximum(0.0, -np.expm1(np.log1p(-chance) - losses))
        x = (losses + np.log(odds) - log(chance)) / distance + distance / 2
        q_mass = _normal_mass(x)
        p_mass = (1 - chance) * q_mass + chance * _normal_mass(x - distance)
        p_up = np.clip((p_mass - _normal_mass(x, losses[:-1])) / -expm1(-step), 0, p_mass)
        q_up = np.minimum(np.exp(np.log(p_up) - losses[1:]), q_mass)
    p, q = np.append(0.0, p_up), np.append(0.0, q_up)
    p[:-1] += p_mass - p_up
    q[:-1] += q_mass - q_up
    first, last = x[0], x[-1]
    p[0] += (1 - chance) * _normal_below(first) + chance * _normal_below(first - distance)
    q[-1] += _normal_below(-last)
    above = (1 - chance) * _normal_below(-last) + chance * _normal_below(distance - last)
    return p, q, above, _normal_below(first)


def _normal_mass(x: Array, factor: Array | float = 0.0) -> Array:
    """The chance of a standard normal in each interval of increasing x, times exp(factor).

    Differences of tails, on the side where they are small.
    """
    tail = torch.special.log_ndtr(torch.from_numpy(-np.abs(x))).numpy()
    left, right = np.exp(factor + tail[:-1]), np.exp(factor + tail[1:])
    below, above = x[1:] <= 0, x[:-1] >= 0
    masses: Array = np.where(above, left - right, right - left)
    return np.where(below | above, masses, np.exp(factor) - left - right)


def _normal_below(x: float) -> float:
    return erfc(-x / sqrt(2)) / 2


class Loss:
    """The distribution of a round's privacy loss L = log(dP / dQ) under P, on a grid.

        delta(epsilon) = E max(0, 1 - exp(epsilon - L)),  L the sum of the rounds' losses

    chances: of -half * step, ..., half * step; infinite: the chance of a larger loss.
    """

    def __init__(self, chances: Array, step: float, infinite: float) -> None:
        self._step, self._infinite, self._half = step, infinite, len(chances) // 2
        # Zero stands at index 0, and negative losses at the end, for the Fourier transform.
        self._spectrum = np.fft.rfft(np.roll(np.append(chances, 0.0), self._half + 2))
        self._excess = -np.expm1(-step * np.arange(self._half + 1))  # 1 - exp(epsilon - L)
        # log E exp(s L) for some orders s > 0
        self._orders = ORDERS / (self._half * step)
        losses = step * np.arange(-self._half, self._half + 1)
        with np.errstate(divide="ignore"):
            powers = np.outer(self._orders, losses) + np.log(chances)
        most = powers.max(axis=1)
        self._moments = most + np.log(np.exp(powers - most[:, None]).sum(axis=1))

    def quantile(self, rounds: int, chance: float) -> float:
        """A finite sum of losses is larger with at most this chance: Chernoff's bound."""
        return float(np.min((rounds * self._moments - log(chance)) / self._orders))

    def chance_above(self, rounds: int, total: float) -> float:
        """A bound on the chance that the sum of losses exceeds the total."""
        finite = np.exp(np.min(rounds * self._moments - total * self._orders))
        return float(finite) - expm1(rounds * log1p(-self._infinite))

    def epsilon_by_moments(self, rounds: int, delta: float) -> float:
        """An upper bound for any delta; Canonne, Kamath and Steinke 2020, Proposition 12."""
        s, left = self._orders, delta + expm1(rounds * log1p(-self._infinite))
        if left <= 0:
            return inf
        gains = s * np.log(s) - (1 + s) * np.log1p(s)
        return max(0.0, float(np.min((rounds * self._moments + gains - log(left)) / s)))

    def epsilon(self, rounds: int, delta: float) -> float:
        """The least epsilon with delta(epsilon) <= delta, if no sum lies beyond the grid."""
        chances = np.fft.irfft(_power(self._spectrum, rounds))[: self._half + 1]

        def delta_of(i: int) -> float:
            return float(chances[i:] @ self._excess[: self._half + 1 - i])

        i = bisect_left(range(self._half), True, key=lambda i: delta_of(i) <= delta)
        if i == 0:
            return 0.0
        # Between two points of the grid, delta(epsilon) is p - q exp(epsilon).
        p = float(chances[i:].sum())
        q = p - delta_of(i)
        return self._step * i + (min(0.0, log((p - delta) / q)) if q > 0 else 0.0)


def _power(numbers: Array, exponent: int) -> Array:
    """Powers of complex numbers by squaring; numpy takes logarithms, which is slower."""
    result = np.ones_like(numbers)
    while exponent:
        if exponent % 2:
            result = result * numbers
        numbers, exponent = numbers * numbers, exponent // 2
    return result


class PrivacyAccountant:
    """The privacy that a run of so many rounds spends.

    The distribution of the losses is composed by fast Fourier transforms, on a grid on which all
    rounding is upwards.  For a tiny delta, their floating-point errors would matter, and moments
    are used, which are looser.
    """

    def __init__(self, privacy: Gaussian, sampling: Sampling, rounds: int) -> None:
        self.privacy, self.sampling, self.rounds = privacy, sampling, rounds
        self._spent = cache(self._compose)
        noise, spare = min(privacy.noise or 0.0, MOST), max(SPARE * privacy.delta, 1e-300)
        if noise < LEAST:
            return
        # The coarse grid ends where the loss of one round does, the fine one where their sum does.
        # A normal number exceeds x with at most the chance exp(-x^2 / 2).
        distance = sampling.distance(noise)
        chance = sampling.cohort / sampling.clients if sampling.hidden else 1.0
        x = distance + sqrt(2 * (log(rounds) - log(spare)))
        with np.errstate(divide="ignore"):
            logs = np.log1p(-chance), log(chance) + distance * (x - distance / 2)
        self._coarse = sampling.losses(noise, float(np.logaddexp(*logs)) / COARSE, COARSE)
        end = max(loss.quantile(rounds, spare) for loss in self._coarse)
        half = 2 ** ceil(log2(FINE * sqrt(max(1, rounds / 500)))) - 1
        self._fine = sampling.losses(noise, end / half, half)
        self._beyond = max(loss.chance_above(rounds, end) for loss in self._fine)

    def epsilon(self, rounds: int) -> float:
        """The epsilon after these rounds, for the mechanism's delta.

        To save time, rounds before the last are rounded up to five binary digits.  Infinite
        without noise, and below the least noise that is accounted for.
        """
        check(rounds <= self.rounds, f"This run has {self.rounds} rounds, got {rounds}.")
        if (self.privacy.noise or 0.0) < LEAST:
            return inf
        unit = 2 ** max(0, rounds.bit_length() - 5)
        return self._spent(min(self.rounds, -(-rounds // unit) * unit))

    def _compose(self, rounds: int) -> float:
        delta = self.privacy.delta
        error = FFT_ERROR * (rounds + 100)
        left = delta - self._beyond - error
        if error > delta / 100 or left < delta / 2:
            return max(loss.epsilon_by_moments(rounds, delta) for loss in self._coarse)
        epsilon = 0.0
        for loss in self._fine:
            if loss.chance_above(rounds, epsilon) > left:
                epsilon = max(epsilon, loss.epsilon(rounds, left))
        return epsilon

    def in_words(self, rounds: int) -> str:
        """The guarantee after these rounds."""
        kind, cohort, clients, _ = self.sampling
        return (
            f"Privacy: epsilon = {self.epsilon(rounds):.4g} at delta = {self.privacy.delta:g} for "
            f"{RELATIONS[kind]}, after {rounds} rounds with noise {self.privacy.noise:g} and "
            f"{kind} cohorts of {cohort} of {clients} clients."
        )


def accountant_of(
    privacy: Gaussian, task: Task, algorithm: Algorithm, run: RunOptions, cohorts: Cohorts | str
) -> PrivacyAccountant:
    """A run's accountant; finds the noise if epsilon is given, raises if it cannot be private."""
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
    kind: Literal["poisson", "uniform"] = "poisson" if cohorts == "poisson" else "uniform"
    hidden = kind == "poisson" or not remembers(algorithm)
    sampling = Sampling(kind, run.clients_per_round, task.data.num_clients, hidden)
    if privacy.epsilon is not None:
        noise = least_noise(privacy.epsilon, privacy.delta, sampling, run.rounds)
        privacy = replace(privacy, noise=noise, epsilon=None)
    return PrivacyAccountant(privacy, sampling, run.rounds)


def remembers(algorithm: Algorithm) -> bool:
    """Whether clients may have memory, so that an update may depend on the rounds before."""
    mine, hooks = type(algorithm), ("client_init", "client_finish")
    return any(getattr(mine, hook) is not getattr(Algorithm, hook) for hook in hooks)


def least_noise(epsilon: float, delta: float, sampling: Sampling, rounds: int) -> float:
    """The least multiple of 1 / `DIGITS` for which these rounds cost at most epsilon."""

    def is_enough(multiple: int) -> bool:
        privacy = Gaussian(clip=1.0, noise=multiple / DIGITS, delta=delta)
        return PrivacyAccountant(privacy, sampling, rounds).epsilon(rounds) <= epsilon

    multiples = range(round(LEAST * DIGITS), round(MOST * DIGITS) + 1)
    found = bisect_left(multiples, True, key=is_enough)
    check(
        found < len(multiples),
        f"Even with a noise of {MOST:g} times clip, {rounds} rounds cost more than epsilon = "
        f"{epsilon:g} at delta = {delta:g}. Raise epsilon, or run fewer rounds.",
    )
    return multiples[found] / DIGITS
