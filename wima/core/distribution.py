"""Summary of a metric's distribution over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TENTH = 10  # "worst" is the mean of the lowest 1 / 10
QUANTILES = np.arange(21) / 20  # 0, 5, ... 100 %


def summary(values: Sequence[float], plain: Sequence[float] | None = None) -> dict[str, Any]:
    """Mean, population standard deviation, mean of the lowest tenth, quantiles, and count.

    The tenth is rounded down but has at least one value.  plain: the same clients' values with the
    plain model; adds how many clients gained and lost compared to it.  Ties count as neither.
    """
    if not len(values):
        raise ValueError("summary needs at least one value, got none.")
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
    if len(plain) != len(values):
        raise ValueError(
            f"summary needs one plain value per value, got {len(plain)} for {len(values)}."
        )
    gain = np.asarray(values, np.float64) - np.asarray(plain, np.float64)
    return found | {"gained": int((gain > 0).sum()), "lost": int((gain < 0).sum())}
