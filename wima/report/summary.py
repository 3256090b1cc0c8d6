"""The figure and summary of one run."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wima.core.text import cell
from wima.report.figures import axes_for as axes_for, draw as draw
from wima.report.measure import Measure
from wima.runs.record import Curves
from wima.runs.run import Row, Run, ending, rows_of

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


def summarize(run: Run, metric: str = "accuracy") -> Summary:
    """Mean and standard deviation of each model's metric over the run's last rounds."""
    _, last, curves = ending(run)
    return summary_of(curves, last, metric)


def summary_of(curves: Curves, last: int, metric: str) -> Summary:
    """The same for curves of the last rounds."""
    return Summary(rows_of(curves, last, metric), metric)


def draw_curves(run: Run, path: Path, metric: str = "accuracy") -> None:
    """Write a PNG of the metric over rounds, with plain solid and averages dashed, and windows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw(run, *axes_for(run, figure), run.title, metric)
    figure.savefig(path, dpi=120)
