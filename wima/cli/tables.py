"""The result of a run, and a list of runs, for the terminal."""

from math import isnan
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wima.core.errors import UsageError, check
from wima.core.statistics import LAST
from wima.core.text import cell, echo
from wima.runs.folder import run_folders
from wima.runs.run import Ending, Run, ending, read_run, state_of, summarize

SCORED = f"test accuracy %, mean over the last {LAST} rounds (short runs: the last quarter)"


def show(run: Run, path: Path) -> None:
    """Print the table of a finished run, and plot its curves into its folder."""
    from wima.runs.summary import draw_curves  # here: `wima runs` needs no numpy

    draw_curves(run.curves, run.title, path / "curves.png")
    Console().print(summarize(run))
    echo(f"Records: {path / 'records.jsonl'}")
    echo(f"Picture: {path / 'curves.png'}")


def runs_table(folder: Path) -> Table:
    """The runs in a folder and its subfolders: state, progress and final accuracy."""
    check(folder.is_dir(), f"{folder} is not a folder; expected one that contains run folders.")
    table = Table(title=cell(f"Runs in {folder}: {SCORED}"))
    for number, heading in enumerate(("run", "state", "rounds", "plain", "best average")):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    for path in run_folders(folder):
        try:
            run = read_run(path)
            end = ending(run)
            cells = (state_of(run), f"{end.t}/{run.settings.rounds}", *_means(end))
        except (UsageError, KeyError, TypeError) as error:
            cells = ("unreadable", str(error).splitlines()[0][:60], "", "")
        name = path.name if path == folder else str(path.relative_to(folder))
        table.add_row(*map(cell, (name, *cells)))
    return table


def _means(end: Ending) -> tuple[str, str]:
    """The mean of the plain model, and the highest mean of an average with its name."""
    try:
        rows = end.curves.rows(end.last)
        means = {row.model: row.mean for row in rows if not isnan(row.mean)}
    except KeyError:  # accuracy was not measured
        means = {}
    plain = means.pop("plain", None)
    best = max(means, key=means.__getitem__, default=None)
    average = "" if best is None else f"{100 * means[best]:.2f} {best}"
    return "" if plain is None else f"{100 * plain:.2f}", average
