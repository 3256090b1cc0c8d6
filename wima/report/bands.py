"""How curves are drawn: seeds as a mean with a band, sparse evaluations as points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wima.report.statistics import Curve, Floats

if TYPE_CHECKING:  # the figure of a single run needs no tables
    from wima.report.tables import Member

MARKED = 80  # up to this many evaluations are shown as points, more as a line


class Band(NamedTuple):
    """The values of several seeds, in the rounds in which all were evaluated."""

    rounds: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats
    seeds: list[int]


def band_of(members: Sequence[Member]) -> Band | None:
    """Mean, minimum and maximum over the finished seeds; None if there are fewer than two."""
    own = [member for member in members if member.counts]
    curves = [member.run.curves[member.model] for member in own if member.run is not None]
    if len(curves) < 2:
        return None
    rounds = reduce(np.intersect1d, [curve.rounds for curve in curves])
    values = np.stack([curve.values[np.isin(curve.rounds, rounds)] for curve in curves])
    spread = (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    return Band(rounds, *spread, [member.seed for member in own]) if len(rounds) else None


def sparse_until(rounds: NDArray[np.int64]) -> int:
    """The round up to which some rounds were not evaluated; 0 if every round was.

    Many evaluations at equal distances are drawn as an ordinary line, so they also give 0.
    """
    gaps = np.flatnonzero(np.diff(rounds) > 1)
    if not len(gaps) or (gaps[-1] + 2 == len(rounds) > MARKED):
        return 0
    return int(rounds[gaps[-1] + 1])


def draw_curve(axes: Any, curve: Curve, until: int, label: str | None, **style: Any) -> Any:
    """A line; up to round `until`, it is thin, with points at the evaluations."""
    early, dense = curve.rounds <= until, curve.rounds >= until
    lines = []
    if early.any():
        thin = {**style, "linewidth": 0.5 * style["linewidth"]}
        if early.sum() <= MARKED:
            thin |= {"marker": "o", "markersize": 2 + style["linewidth"]}
        lines += axes.plot(curve.rounds[early], curve.values[early], **thin)
    if dense.sum() > 1 or not lines:
        lines += axes.plot(curve.rounds[dense], curve.values[dense], **style)
    lines[-1].set_label(label)
    return lines[-1]
