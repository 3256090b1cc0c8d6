"""Differential privacy of a round: clients' updates are clipped, and noise is added to their sum.

McMahan et al. 2018, *Learning Differentially Private Recurrent Language Models*; the adaptive clip
is from Andrew et al. 2021, *Differentially Private Learning with Adaptive Clipping*, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from typing import NamedTuple

import torch

from wima.core.checks import check_range, check_rate
from wima.core.errors import check
from wima.core.randomness import rng
from wima.core.vector import Vector

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
