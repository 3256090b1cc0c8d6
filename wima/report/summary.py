"""The figure and summary of one run."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from wima.core.text import cell, printable
from wima.report.bands import draw_curve, sparse_until
from wima.report.measure import Measure
from wima.report.statistics import Curve
from wima.report.strip import axes_of
from wima.runs.folder import Row, Run, ending, rows_of
from wima.runs.own_code import OWN, label
from wima.runs.record import Counts, Curves

HEADINGS = ("model", "mean", "deviation", "gain")


class Drawn(Protocol):
    """Metrics over rounds: a `Run`, or a `Result`."""

    @property
    def models(self) -> list[str]: ...

    @property
    def windows(self) -> dict[str, Counts]: ...

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]: ...


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


def summarize(run: Run, metric: str = "accuracy") -> Summary:
    """Mean and standard deviation of each model's metric over the run's last rounds."""
    _, last, curves = ending(run)
    return summary_of(curves, last, metric)


def summary_of(curves: Curves, last: int, metric: str) -> Summary:
    """The same for curves of the last rounds."""
    return Summary(rows_of(curves, last, metric), metric)


def title_of(run: Run) -> str:
    """One line that says what was run."""
    settings, clients = run.settings, run.environment.get("clients", "all")
    return title(settings.algorithm.name, settings.data.name, settings.clients_per_round, clients)


def title(algorithm: str, data: str, per_round: int, clients: object) -> str:
    """The same, from names in settings."""
    on = "own data" if data == OWN else label(data)
    return f"{label(algorithm)} on {on}, {per_round} of {clients} clients per round"


def draw_curves(run: Run, path: Path, metric: str = "accuracy") -> None:
    """Write a PNG of the metric over rounds, with plain solid and averages dashed, and windows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw(run, *axes_for(run, figure), title_of(run), metric)
    figure.savefig(path, dpi=120)


def axes_for(curves: Drawn, figure: Any) -> tuple[Any, Any]:
    """The axes of the curves, and those of the windows, or None if no window varies."""
    return axes_of(figure, (counts for _, counts in curves.windows.values()))


def draw(curves: Drawn, axes: Any, strip: Any | None, title: str, metric: str) -> None:
    """Draw the curves, plain solid and averages dashed; strip: axes for windows that vary."""
    for model in curves.models:
        rounds, values = curves.curve(model, metric)
        plain = model == "plain"
        curve = Curve(np.array(rounds), np.array(values))
        style = {"ls": "-" if plain else "--", "linewidth": 0.9 if plain else 2.0}
        until = sparse_until(curve.rounds)
        line = draw_curve(axes, curve, until, _no_formula(model), **style)
        if strip is not None and model in curves.windows:
            strip.plot(*curves.windows[model], color=line.get_color(), linewidth=1.0)
    values = curves.curve("plain", metric)[1]
    if metric == "accuracy" and values:
        axes.set_ylim(max(0.0, float(np.nanpercentile(values, 10)) - 0.05), 1.0)
    axes.set_title(_no_formula(title))
    axes.set_ylabel(_no_formula(f"test {metric}"))
    axes.grid(alpha=0.3)
    if curves.models:
        axes.legend(loc="lower right")


def _no_formula(text: str) -> str:
    """Text that matplotlib shows literally."""
    return printable(text).replace("$", r"\$")
