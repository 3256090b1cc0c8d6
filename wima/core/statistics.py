"""Student's interval of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, sqrt

import numpy as np

RISK = 0.05  # that an interval misses the mean


def student_margin(values: Sequence[float] | np.ndarray, risk: float = RISK) -> float:
    """Half the two-sided interval of a mean, t(n - 1) s / sqrt(n); NaN if n < 2."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # slow to import

    count = len(values)
    if count < 2:
        return nan
    return float(stdtrit(count - 1, 1 - risk / 2) * np.std(values, ddof=1) / sqrt(count))
