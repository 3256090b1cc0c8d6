"""The figure of a comparison: mean curves with bands, beside the paired differences."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import reduce
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.text import printable
from wima.report.comparison.paired import Comparison, Row
from wima.report.figures import COLOURS
from wima.report.statistics import Curve, thinned
from wima.report.tables import PLAIN

WIDTH = 7.0  # inches: the text width of a two-column paper
DPI = 300
MOST = 24  # rows that fit into a figure
POINTS = 1000  # per curve
EARLY = 0.2  # fraction of the rounds that does not stretch the axis
SPARSE = 60  # up to this many evaluations are also drawn as points
LONGEST, SHORT = 38, 16  # length of a name, and of one below an axis
DASHES: list[Any] = ["-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5))]  # of averages
STYLE: dict[Any, Any] = {"font.size": 8, "axes.labelsize": 8, "axes.linewidth": 0.6}
STYLE |= {"pdf.fonttype": 42}  # TrueType, which publishers require
STYLE |= {"xtick.labelsize": 7, "ytick.labelsize": 7}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False}


def draw(comparison: Comparison, folder: Path) -> None:
    """Write compare.png and compare.pdf; the same runs give the same files."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        figure = _figure(comparison)
        figure.savefig(folder / "compare.png", dpi=DPI)
        figure.savefig(folder / "compare.pdf", metadata={"CreationDate": None})


def _figure(comparison: Comparison) -> Any:
    from matplotlib.figure import Figure

    rows = [row for row in comparison.rows if _tone(row, comparison) < len(COLOURS)][:MOST]
    height = max(2.4, 0.9 + 0.17 * len(rows))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    curves, forest = figure.subplots(1, 2, width_ratios=(1.25, 1))
    ranges = [_curve(curves, row, _look(row, comparison), comparison) for row in rows]
    _limit(curves, np.concatenate([np.empty(0), *ranges]))
    curves.set_xlabel("round")
    curves.set_ylabel(_name(comparison.measure.title), parse_math=False)
    curves.grid(alpha=0.25, linewidth=0.5)
    _forest(forest, rows, comparison)
    hidden = len(comparison.rows) - len(rows)
    if hidden:
        forest.set_title(f"{hidden} more rows are in the table", size=7, loc="right")
    return figure


def _tone(row: Row, comparison: Comparison) -> int:
    """The index of its colour: one per method, or per model if there is only one method."""
    methods = comparison.methods
    return methods.index(row.method.name) if methods[1:] else comparison.models.index(row.model)


def _look(row: Row, comparison: Comparison) -> dict[str, Any]:
    """Plain is thin, averages are thick and dashed in different ways."""
    look = {"color": COLOURS[_tone(row, comparison)], "linewidth": 0.7, "linestyle": "-"}
    if row.model == PLAIN:
        return look
    averages = [model for model in comparison.models if model != PLAIN]
    dash = DASHES[averages.index(row.model) % len(DASHES)]
    return look | {"linewidth": 1.5, "linestyle": dash}


def mean_curve(row: Row) -> tuple[Curve, np.ndarray]:
    """Mean and deviation over seeds, in the rounds in which every seed was evaluated."""
    runs = [m.run for m in row.members if m.run and m.counts]
    known = [run.curves[row.model] for run in runs]
    rounds = reduce(np.intersect1d, [curve.rounds for curve in known])
    values = np.stack([c.values[np.searchsorted(c.rounds, rounds)] for c in known])
    spread = values.std(axis=0, ddof=1) if len(known) > 1 else np.full(len(rounds), np.nan)
    return Curve(rounds, values.mean(axis=0)), spread


def _curve(axes: Any, row: Row, look: dict[str, Any], comparison: Comparison) -> np.ndarray:
    """Draw the mean and its band; returns the values that must be visible."""
    if row.diverged or not row.means:
        return np.empty(0)
    curve, spread = mean_curve(row)
    thin = thinned(curve, POINTS)
    kept, factor = np.searchsorted(curve.rounds, thin.rounds), comparison.measure.factor
    points = {"marker": "o", "markersize": 1.8} if len(curve.rounds) <= SPARSE else {}
    axes.plot(thin.rounds, factor * thin.values, **look, **points)
    band = factor * np.stack([thin.values + side * np.nan_to_num(spread[kept]) for side in (-1, 1)])
    axes.fill_between(thin.rounds, *band, color=look["color"], alpha=0.15, linewidth=0)
    return band[:, thin.rounds > EARLY * curve.rounds[-1:]].ravel()


def _limit(axes: Any, values: np.ndarray) -> None:
    """Set the axis limits to include these values."""
    known = values[np.isfinite(values)]
    if len(known):
        margin = 0.05 * (known.max() - known.min()) or 0.01
        axes.set_ylim(known.min() - margin, known.max() + margin)


def _forest(axes: Any, rows: Sequence[Row], comparison: Comparison) -> None:
    """A point per row with its interval; filled if significant after Holm's correction."""
    factor = comparison.measure.factor
    axes.axvline(0, color="0.4", linewidth=0.6)
    for place, row in enumerate(rows):
        look, found = _look(row, comparison), row.difference
        filled = found is not None and found.marked
        point = {"marker": "o", "markersize": 4, "color": look["color"], "linestyle": "none"}
        point["markerfacecolor"] = look["color"] if filled else "white"
        if row is comparison.baseline:
            axes.plot(0, place, **(point | {"marker": "|", "markersize": 7}))
        if found is None:
            continue
        ends = [factor * (found.mean + side * found.half) for side in (-1, 1)]
        if not isnan(found.half):
            axes.plot(ends, [place, place], **look)
        axes.plot(factor * found.mean, place, **point)
    _labels(axes, rows, comparison)


def _labels(axes: Any, rows: Sequence[Row], comparison: Comparison) -> None:
    measure = comparison.measure
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [_label(row, comparison) for row in rows])
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_color(_look(row, comparison)["color"])
        text.set_parse_math(False)
    unit = "points" if measure.is_share else measure.metric
    name = comparison.baseline.name
    told = f"difference from {name if len(name) <= SHORT else 'the baseline'}, {unit}"
    axes.set_xlabel(printable(told), parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)
    axes.spines["left"].set_visible(False)


def _label(row: Row, comparison: Comparison) -> str:
    """Its name; only the model if there is one method, only the method if there is one model."""
    name = row.model if len(comparison.methods) == 1 else row.name
    name = row.method.name if len(comparison.models) == 1 else name
    return _name(name) + (" (diverged)" if row.diverged else "")


def _name(text: str, longest: int = LONGEST) -> str:
    """Text that is short enough, and valid in a PDF."""
    text = printable(text).replace("\n", " ").replace("\t", " ")
    half = longest // 2 - 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
