"""The result of a run, and a list of runs, on the terminal."""

from __future__ import annotations

from math import isnan
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wima.core.errors import UsageError, check
from wima.core.text import cell, echo
from wima.report.summary import draw_curves, summarize
from wima.runs.folder import Run, read_run, state_of


def show(run: Run, path: Path) -> None:
    """Print a finished run's table, and draw its curves into its folder."""
    draw_curves(run, path / "curves.png")
    Console().print(summarize(run))
    echo(f"Records: {path / 'records.jsonl'}")
    echo(f"Picture: {path / 'curves.png'}")


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
