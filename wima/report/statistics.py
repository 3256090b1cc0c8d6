"""The numbers of a metric's curve: level, spread, gain, stability, speed, forgetting.

A curve is the metric of one model in the evaluated rounds of one run.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isnan, nan
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wima.core.statistics import LAST, LEAST, RISK, holm, of_independent, of_series

Floats = NDArray[np.float64]
Basis = Literal["seeds", "rounds"]
CONSTANT = "No interval where all differences are equal: with few of them, that is often chance."


class Curve(NamedTuple):
    """A model's metric in the evaluated rounds; NaN where it was not finite."""

    rounds: NDArray[np.int64]
    values: Floats


class Score(NamedTuple):
    """One model in one run, over the last rounds."""

    mean: float
    deviation: float  # standard deviation from round to round
    jump: float  # mean |value_t - value_{t-1}|
    forgetting: float  # mean of (best so far - value_t)
    reached: int | None  # first evaluated round at the target
    evaluations: int


class Interval(NamedTuple):
    """A mean with half the width of its 95 % interval, which is NaN if there is too little data."""

    mean: float
    half: float
    basis: Basis  # what the interval is computed over
    size: int  # seeds, or evaluated rounds
    p: float  # probability of a mean this far from zero if the true mean is zero
    holm: float = nan  # p, corrected for the number of intervals in the table

    @property
    def is_constant(self) -> bool:
        """Whether there is no interval because all differences are equal."""
        enough = self.size >= (2 if self.basis == "seeds" else LEAST)
        return enough and isnan(self.half) and not isnan(self.mean)

    @property
    def marked(self) -> bool:
        """Whether zero is excluded after Holm's correction."""
        return self.holm <= RISK


def late(curve: Curve, end: int, last: int = LAST) -> Floats:
    """The values of the last rounds of a run that ended after `end` rounds."""
    return curve.values[curve.rounds > end - last]


def score(
    curve: Curve, end: int, last: int = LAST, target: float | None = None, sign: int = 1
) -> Score:
    """All numbers of one curve.  sign = -1 if lower is better, as for a loss."""
    values = late(curve, end, last)
    return Score(
        mean=float(np.mean(values)) if len(values) else nan,
        deviation=float(np.std(values)) if len(values) else nan,
        jump=float(np.mean(np.abs(np.diff(values)))) if len(values) > 1 else nan,
        forgetting=forgetting(curve, end, last, sign),
        reached=reached(curve, target, sign),
        evaluations=len(values),
    )


def forgetting(curve: Curve, end: int, last: int = LAST, sign: int = 1) -> float:
    """How far the model falls behind its best so far: the mean of max_{s<=t} value_s - value_t.

    The mean is over the last rounds; the maximum is over all rounds up to each of them.
    """
    best = np.fmax.accumulate(sign * curve.values)
    behind = (best - sign * curve.values)[curve.rounds > end - last]
    return float(np.mean(behind)) if len(behind) else nan


def reached(curve: Curve, target: float | None, sign: int = 1) -> int | None:
    """The first evaluated round at the target or better; None if there is none."""
    if target is None:
        return None
    there = curve.rounds[sign * curve.values >= sign * target]
    return int(there[0]) if len(there) else None


def over_seeds(means: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1) of the runs' means; NaN deviation for a single run."""
    if not means:
        return nan, nan
    deviation = float(np.std(means, ddof=1)) if len(means) > 1 else nan
    return float(np.mean(means)), deviation


def gain(differences: Sequence[float] | Floats, basis: Basis) -> Interval:
    """Mean of paired differences, one per seed or per round of one run, with its interval.

    Both models of a pair saw the same cohorts, so what a seed does to both cancels out.  Over
    rounds, the interval is widened for their correlation and says nothing about other seeds.
    """
    found = of_independent(differences) if basis == "seeds" else of_series(differences)
    return Interval(found.mean, found.margin(), basis, len(differences), found.p)


def corrected(gains: Sequence[Interval]) -> list[Interval]:
    """The intervals with p-values corrected by Holm's method, over those that have one."""
    ps = iter(holm([gain.p for gain in gains if not isnan(gain.p)]))
    return [gain if isnan(gain.p) else gain._replace(holm=next(ps)) for gain in gains]


def thinned(curve: Curve, points: int) -> Curve:
    """About this many points for a figure: both ends, and the extremes of each stretch."""
    count = len(curve.values)
    if count <= points:
        return curve
    edges = np.linspace(0, count, max(points // 2, 1) + 1).astype(int)
    kept = {0, count - 1}
    for begin, end in pairwise(edges):
        order = np.argsort(curve.values[begin:end], kind="stable")  # NaN comes last
        known = order[~np.isnan(curve.values[begin:end][order])]
        kept |= {int(begin + i) for i in (*known[:1], *known[-1:])} or {int(begin)}
    index = sorted(kept)
    return Curve(curve.rounds[index], curve.values[index])
