"""How curves are drawn: seeds as their mean and a band, few evaluations as points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wima.report.statistics import Curve, Floats

if TYPE_CHECKING:  # the picture of a run needs no tables
    from wima.report.tables import Member

MARKED = 80  # evaluations that are shown as points; more are a line


class Band(NamedTuple):
    """The values of several seeds, in the rounds where all were evaluated."""

    rounds: NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats
    seeds: list[int]


def band_of(members: Sequence[Member]) -> Band | None:
    """Mean, least and greatest of the seeds that are done; None if they are fewer than two."""
    own = [member for member in members if member.counts]
    curves = [member.run.curves[member.model] for member in own if member.run is not None]
    if len(curves) < 2:
        return None
    rounds = reduce(np.intersect1d, [curve.rounds for curve in curves])
    values = np.stack([curve.values[np.isin(curve.rounds, rounds)] for curve in curves])
    spread = (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    return Band(rounds, *spread, [member.seed for member in own]) if len(rounds) else None


def sparse_until(rounds: NDArray[np.int64]) -> int:
    """The last round before which rounds were left out; 0 if every round was evaluated.

    Many evaluations at equal distances are a line like any other: 0, too.
    """
    gaps = np.flatnonzero(np.diff(rounds) > 1)
    if not len(gaps) or (gaps[-1] + 2 == len(rounds) > MARKED):
        return 0
    return int(rounds[gaps[-1] + 1])


def draw_curve(axes: Any, curve: Curve, until: int, label: str | None, **style: Any) -> Any:
    """A line; before the round `until` a thin one, with points where it was evaluated."""
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
