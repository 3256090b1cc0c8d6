"""The metric by window size, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from wima.core.text import cell, printable
from wima.model_files.advise import Row
from wima.model_files.mean import Decay
from wima.storage.files import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def advice_table(rows: Sequence[Row], metric: str) -> Table:
    """A row per candidate: mean and deviation over end points, gain over plain, its interval."""
    ends = len(rows[0].values)
    table = Table(title=cell(f"{metric}, mean over {ends} end points"))
    for heading in ("candidate", metric, "deviation", "gain", "±"):
        table.add_column(cell(heading), justify="left" if heading == "candidate" else "right")
    for row in rows:
        plain = row is rows[0]
        gain = "" if plain else f"{row.gain:+.5f}"
        margin = "" if plain or ends == 1 else f"{row.margin:.5f}"
        table.add_row(row.rule.name, f"{row.mean:.5f}", f"{row.deviation:.5f}", gain, margin)
    return table


def draw_advice(rows: Sequence[Row], metric: str, path: Path, force: bool = False) -> None:
    """Plot the metric against the window as a PNG; error bars: deviation over end points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    plain = rows[0]
    axes.axhline(plain.mean, color="black", linewidth=0.9, label="plain")
    low, high = plain.mean - plain.deviation, plain.mean + plain.deviation
    axes.axhspan(low, high, color="black", alpha=0.08)
    windows = [row for row in rows if not isinstance(row.rule, Decay)]
    decays = [row for row in rows if isinstance(row.rule, Decay)]
    _points(axes, windows, "o-", "window")
    _points(axes, decays, "s--", "EMA, at the window of the same mean age")
    sizes = [int(row.rule.span) for row in windows]
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("window: models in the mean")
    axes.set_ylabel(printable(metric), parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, path, force)


def _points(axes: Axes, rows: Sequence[Row], style: str, label: str) -> None:
    some = sorted(rows, key=lambda row: row.rule.span)
    if some:
        spans, means = [row.rule.span for row in some], [row.mean for row in some]
        axes.errorbar(spans, means, [row.deviation for row in some], fmt=style, label=label)
