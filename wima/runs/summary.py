"""The figure and summary of one run."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from wima.core.measure import PLAIN, Measure
from wima.core.text import cell, printable
from wima.runs.record import Curves, Row

Rounds = NDArray[np.int64]
Values = NDArray[np.float64]
MARKED = 80  # up to this many evaluations are shown as points, more as a line
STRIP = "models in\nthe window"  # below curves, for windows that are chosen automatically
HEADINGS = ("model", "mean", "deviation", "gain")


class Summary(list[Row]):
    """Rows that terminals and notebooks show as a table."""

    def __init__(self, rows: list[Row], metric: str) -> None:
        super().__init__(rows)
        self.metric = metric

    @property
    def title(self) -> str:
        count, last = (self[0].evaluations, self[0].last) if self else (0, 0)
        unit = " %" if Measure(self.metric).is_share else ""
        return f"Test {self.metric}{unit}, {count} evaluations in the last {last} rounds"

    def cells(self) -> list[tuple[str, ...]]:
        """Mean, round-to-round deviation and gain over plain, as strings."""
        measure = Measure(self.metric)
        scale, digits = measure.factor, measure.digits
        return [
            (
                row.model,
                f"{scale * row.mean:.{digits}f}",
                f"{scale * row.deviation:.{digits}f}",
                "" if row is self[0] else f"{scale * (row.mean - self[0].mean):+.{digits}f}",
            )
            for row in self
        ]

    def __rich__(self) -> Table:
        table = Table(title=cell(self.title))
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for model, *numbers in self.cells():
            table.add_row(cell(model), *numbers)
        return table

    def __repr__(self) -> str:
        console = Console(no_color=True, force_jupyter=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    def _repr_html_(self) -> str:
        lines = [("th", HEADINGS), *(("td", row) for row in self.cells())]
        rows = ["".join(f"<{tag}>{escape(text)}</{tag}>" for text in row) for tag, row in lines]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><caption>{escape(self.title)}</caption>{body}</table>"


# The figure


def sparse_until(rounds: Rounds) -> int:
    """The round up to which some rounds were not evaluated; 0 if every round was.

    Many evaluations at equal distances are drawn as an ordinary line, so they also give 0.
    """
    gaps = np.flatnonzero(np.diff(rounds) > 1)
    if not len(gaps) or (gaps[-1] + 2 == len(rounds) > MARKED):
        return 0
    return int(rounds[gaps[-1] + 1])


def draw_curve(
    axes: Any, curve: tuple[Rounds, Values], until: int, label: str | None, **style: Any
) -> Any:
    """A line; up to round `until`, it is thin, with points at the evaluations."""
    rounds, values = curve
    early, dense = rounds <= until, rounds >= until
    lines = []
    if early.any():
        thin = {**style, "linewidth": 0.5 * style["linewidth"]}
        if early.sum() <= MARKED:
            thin |= {"marker": "o", "markersize": 2 + style["linewidth"]}
        lines += axes.plot(rounds[early], values[early], **thin)
    if dense.sum() > 1 or not lines:
        lines += axes.plot(rounds[dense], values[dense], **style)
    lines[-1].set_label(label)
    return lines[-1]


def axes_of(figure: Any, windows: Iterable[Iterable[float]]) -> tuple[Any, Any]:
    """The axes of the curves, and those of the windows below them, or None if no window varies."""
    from matplotlib.ticker import LogLocator

    longest = max(map(max, windows), default=0)
    if not longest:
        axes = figure.add_subplot()
        axes.set_xlabel("round")
        return axes, None
    figure.set_figheight(figure.get_figheight() + 1)
    axes, strip = figure.subplots(2, sharex=True, height_ratios=(1, 0.26))
    strip.set_yscale("log")
    strip.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest <= 100 else (1,)))
    strip.yaxis.set_major_formatter("{x:g}")
    strip.yaxis.set_minor_formatter("")
    strip.set_ylabel(STRIP, fontsize="small")
    strip.set_xlabel("round")
    strip.grid(alpha=0.3)
    return axes, strip


def draw(curves: Curves, axes: Any, strip: Any | None, title: str, metric: str) -> None:
    """Draw the curves, plain solid and averages dashed; strip: axes for windows that vary."""

    def text(name: str) -> str:
        return printable(name).replace("$", r"\$")  # no formula

    for model in curves.metrics:
        rounds, values = curves.curve(model, metric)
        curve = np.array(rounds), np.array(values)
        style = {"ls": "-", "linewidth": 0.9} if model == PLAIN else {"ls": "--", "linewidth": 2.0}
        line = draw_curve(axes, curve, sparse_until(curve[0]), text(model), **style)
        if strip is not None and model in curves.windows:
            strip.plot(*curves.windows[model], color=line.get_color(), linewidth=1.0)
    values = curves.curve(PLAIN, metric)[1]
    if metric == "accuracy" and values:
        axes.set_ylim(max(0.0, float(np.nanpercentile(values, 10)) - 0.05), 1.0)
    axes.set_title(text(title))
    axes.set_ylabel(text(f"test {metric}"))
    axes.grid(alpha=0.3)
    if curves.metrics:
        axes.legend(loc="lower right")


def draw_run(curves: Curves, figure: Any, title: str, metric: str) -> Any:
    """Draw a run, with windows that vary below the curves; returns the axes of the curves."""
    axes, strip = axes_of(figure, (counts for _, counts in curves.windows.values()))
    draw(curves, axes, strip, title, metric)
    return axes


def draw_curves(curves: Curves, title: str, path: Path, metric: str = "accuracy") -> None:
    """Write a PNG of the metric over rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw_run(curves, figure, title, metric)
    figure.savefig(path, dpi=120)
