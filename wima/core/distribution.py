"""How the values of clients are distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TENTH = 10  # the worst 1 / 10 of the clients
QUANTILES = np.arange(21) / 20  # 0, 5, ... 100 %


def summary(values: Sequence[float], plain: Sequence[float] | None = None) -> dict[str, Any]:
    """Mean, population deviation, mean of the lowest tenth, quantiles and number of the values.

    The tenth is rounded down, and one value at least.  With `plain`, the values of the same clients
    with the plain model: how many gained and lost against it; ties are neither.
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
