"""Means with Student's intervals: of independent values, and of a series in which they are not."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np

RISK = 0.05  # that an interval misses the mean
STRETCHES = 10  # that a series is cut into
LEAST = 3 * STRETCHES  # values; the correlation of a shorter series is unknown
FEWEST = 2.5  # independent values that the stretches count as, however correlated they are

Values = Sequence[float] | np.ndarray


class Estimate(NamedTuple):
    """A mean, with its standard error and the degrees of freedom of that; NaN if unknown."""

    mean: float
    error: float
    freedom: float

    def margin(self, risk: float = RISK) -> float:
        """Half the two-sided interval."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # slow to import

        return float(stdtrit(self.freedom, 1 - risk / 2) * self.error)

    @property
    def p(self) -> float:
        """The probability of a mean this far from zero if the true one is zero."""
        from scipy.special import stdtr

        if self.error == 0:
            return float(self.mean == 0)
        return float(2 * stdtr(self.freedom, -abs(self.mean) / self.error))


def of_independent(values: Values) -> Estimate:
    """The mean of n values: error s / sqrt(n), with n - 1 degrees of freedom."""
    return _estimate(values, values, len(values))


def of_series(values: Values) -> Estimate:
    """The mean of values of which neighbours may be correlated; no error if there are under 30.

    r is the correlation of neighbours among the means of ten stretches.  It is biased by
    -(1 + 4 rho) / 10 (Marriott and Pope 1954); rho corrects that and adds half a standard error.
    The stretches count as m = 10 (1 - rho) / (1 + rho) independent values, 2.5 at least.
    """
    if len(values) < LEAST:
        return _estimate(values, values, nan)
    means = np.array([part.mean() for part in np.array_split(np.asarray(values), STRETCHES)])
    away = means - means.mean()
    r = float(away[1:] @ away[:-1] / (away @ away or 1))
    rho = max(0.0, r + (1 + 4 * r) / STRETCHES + 0.5 / sqrt(STRETCHES))
    return _estimate(values, means, max(FEWEST, STRETCHES * (1 - rho) / (1 + rho)))


def _estimate(values: Values, parts: Values, count: float) -> Estimate:
    """The mean of the values; its error is that of parts worth `count` independent ones."""
    mean = float(np.mean(values)) if len(values) else nan
    error = float(np.std(parts)) / sqrt(count - 1) if count > 1 else nan
    return Estimate(mean, error, count - 1)


def student_margin(values: Values, risk: float = RISK) -> float:
    """Half the interval of the mean of independent values, t(n - 1) s / sqrt(n); NaN if n < 2."""
    return of_independent(values).margin(risk)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): all that are under a risk hold at once."""
    order = np.argsort(ps)
    steps = np.arange(len(ps), 0, -1) * np.array(ps)[order]  # k p_1, (k - 1) p_2, ...
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted.tolist()
