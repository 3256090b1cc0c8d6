"""Means with Student's t intervals, distributions over clients, and the last rounds of a run.

numpy is imported where it is used: commands that read run folders start without it.
"""

from collections.abc import Sequence
from math import nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

RISK = 0.05  # probability that an interval misses the mean
STRETCHES = 10  # into which a series is cut
LEAST = 3 * STRETCHES  # values; in a shorter series, correlation cannot be estimated
ROUNDING = 1e-9  # values that differ by less of their size are equal
FEWEST = 2.5  # lower bound on the effective number of independent stretches

Values: TypeAlias = "Sequence[float] | np.ndarray"


class Estimate(NamedTuple):
    """A mean, its standard error and the degrees of freedom of that error; NaN if unknown.

    The error is unknown if all values are equal: with few values of a coarse metric that is often
    chance, and an error of zero would make any mean significant, at every risk.
    """

    mean: float
    error: float
    freedom: float

    def margin(self, risk: float = RISK) -> float:
        """Half-width of the two-sided confidence interval."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # slow to import

        return float(stdtrit(self.freedom, 1 - risk / 2) * self.error)

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the true mean is zero."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.freedom, -abs(self.mean) / self.error))


def of_independent(values: Values) -> Estimate:
    """The mean of n values: error s / sqrt(n), with n - 1 degrees of freedom."""
    return _estimate(values, values, len(values))


def of_series(values: Values) -> Estimate:
    """The mean of values whose neighbours may be correlated; no error if there are fewer than 30.

    r is the lag-1 autocorrelation of the means of ten stretches.  It is biased by
    -(1 + 4 rho) / 10 (Marriott and Pope 1954); rho corrects that and adds half a standard error.
    The stretches count as m = 10 (1 - rho) / (1 + rho) independent values, but at least 2.5.
    """
    if len(values) < LEAST:
        return _estimate(values, values, nan)
    import numpy as np

    means = np.array([part.mean() for part in np.array_split(np.asarray(values), STRETCHES)])
    away = means - means.mean()
    r = float(away[1:] @ away[:-1] / (away @ away or 1))
    rho = max(0.0, r + (1 + 4 * r) / STRETCHES + 0.5 / sqrt(STRETCHES))
    return _estimate(values, means, max(FEWEST, STRETCHES * (1 - rho) / (1 + rho)))


def _estimate(values: Values, parts: Values, count: float) -> Estimate:
    """The mean of the values, with the error of parts that count as `count` independent values."""
    import numpy as np

    mean = float(np.mean(values)) if len(values) else nan
    varied = count > 1 and np.ptp(parts) > ROUNDING * (1e-3 + np.abs(parts).max())
    error = float(np.std(parts)) / sqrt(count - 1) if varied else nan
    return Estimate(mean, error, count - 1)


def student_margin(values: Values, risk: float = RISK) -> float:
    """Half-width of the interval of the mean of independent values, t s / sqrt(n); NaN if n < 2."""
    return of_independent(values).margin(risk)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for multiple tests (Holm 1979): controls the family-wise error rate."""
    import numpy as np

    order = np.argsort(ps)
    steps = np.arange(len(ps), 0, -1) * np.array(ps)[order]  # k p_1, (k - 1) p_2, ...
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted.tolist()


TENTH = 10  # "worst" is the mean of the lowest 1 / 10
QUANTILES = [k / 20 for k in range(21)]  # 0, 5, ... 100 %


def summary(values: Sequence[float], plain: Sequence[float] | None = None) -> dict[str, Any]:
    """Mean, population standard deviation, mean of the lowest tenth, quantiles, and count.

    The tenth is rounded down but has at least one value.  plain: the same clients' values with the
    plain model; adds how many clients gained and lost compared to it.  Ties count as neither.
    """
    import numpy as np

    ordered = np.sort(np.asarray(values, np.float64))
    found = {
        "mean": float(ordered.mean()),
        "deviation": float(ordered.std()),
        "worst": float(ordered[: max(1, len(ordered) // TENTH)].mean()),
        "quantiles": np.quantile(ordered, QUANTILES).tolist(),
        "count": len(ordered),
    }
    if plain is None:
        return found
    gain = np.asarray(values, np.float64) - np.asarray(plain, np.float64)
    return found | {"gained": int((gain > 0).sum()), "lost": int((gain < 0).sum())}


LAST = 100  # as in the paper


def last_rounds(rounds: int) -> int:
    """Number of final rounds that metrics are averaged over: 100, or the last quarter if shorter.

    Gains early in training say nothing about the final model.
    """
    return max(1, min(LAST, rounds // 4))
