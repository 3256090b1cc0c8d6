"""The result of a run, and a list of runs, on the terminal."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from wima.core.errors import UsageError, check
from wima.core.text import cell, echo
from wima.runs.folder import Run, read_run, state_of

if TYPE_CHECKING:
    from wima.report.summary import Row


def show(run: Run, path: Path) -> None:
    """Print a finished run's table, and draw its curves into its folder."""
    from wima.report.summary import draw_curves, summarize  # here: a list of runs needs no numpy

    draw_curves(run, path / "curves.png")
    Console().print(summary_table(summarize(run)))
    echo(f"Records: {path / 'records.jsonl'}")
    echo(f"Picture: {path / 'curves.png'}")


def summary_table(rows: list[Row], metric: str = "accuracy") -> Table:
    """Mean and round-to-round deviation, in percent for an accuracy, with the gain over plain."""
    from wima.report.statistics import LAST

    scale, unit = (100, " %") if metric == "accuracy" else (1, "")
    digits = 2 if scale == 100 else 4
    count = rows[0].evaluations if rows else 0
    table = Table(title=cell(f"Test {metric}{unit}, {count} evaluations in the last {LAST} rounds"))
    for heading in ("model", "mean", "deviation", "gain"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        gain = "" if row is rows[0] else f"{scale * (row.mean - rows[0].mean):+.{digits}f}"
        mean, deviation = scale * row.mean, scale * row.deviation
        table.add_row(cell(row.model), f"{mean:.{digits}f}", f"{deviation:.{digits}f}", gain)
    return table


def runs_table(folder: Path) -> Table:
    """The runs in a folder: state, progress, and the best accuracy of plain and of any average."""
    check(folder.is_dir(), f"{folder} is not a folder; give one that holds run folders.")
    table = Table(title=cell(f"Runs in {folder}"))
    for heading in ("run", "state", "rounds", "best plain", "best average"):
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right")
    for path in sorted(p for p in folder.iterdir() if (p / "status.json").exists()):
        try:
            run = read_run(path)
            cells = (state_of(run), f"{run.t}/{run.settings.rounds}", *_best(run))
        except (UsageError, KeyError, TypeError) as error:
            cells = ("unreadable", str(error).splitlines()[0][:60], "", "")
        table.add_row(*map(cell, (path.name, *cells)))
    return table


def _best(run: Run) -> tuple[str, str]:
    """The best value of the first metric: of plain, and of all averages together."""
    best = {}
    for model in run.models:
        values = [v for v in run.curve(model, "accuracy")[1] if not isnan(v)]
        best[model] = max(values, default=float("nan"))
    plain, others = best.pop("plain", float("nan")), list(best.values())
    return _percent(plain), _percent(max(others, default=float("nan")))


def _percent(value: float) -> str:
    return "" if isnan(value) else f"{100 * value:.2f} %"
