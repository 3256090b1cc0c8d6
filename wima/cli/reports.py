"""What run folders show: `wima report`, `wima compare`, a list of runs, the result of a run."""

from __future__ import annotations

import sys
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from wima.cli.arguments import Last, Metric, Paths, Target
from wima.core.errors import UsageError, check
from wima.core.measure import Measure, check_measure
from wima.core.statistics import LAST
from wima.core.text import cell, command_line, echo, printable

if TYPE_CHECKING:
    from rich.table import Table

    from wima.report.compare import Comparison
    from wima.runs.run import Ending, Run

WIDTH = 100  # of the table, if the output is not a terminal
SCORED = f"test accuracy %, mean over the last {LAST} rounds (short runs: the last quarter)"
LONG = 26  # characters; longer names take two lines


def report(
    paths: Paths,
    out: Annotated[Path, Option(help="Output folder.")],
    metric: Metric = "accuracy",
    last: Last = None,
    target: Target = None,
    notes: Annotated[
        Path | None,
        Option(help="Notes in Markdown; sections titled like a data set go with it."),
    ] = None,
    force: Annotated[bool, Option(help="Replace an earlier report.")] = False,
) -> None:
    """Write tables, figures and a web page of runs, next to the paper's numbers if it has any."""
    from wima.report.write import write_report

    done = write_report(paths, out, Measure(metric, last, target), force, notes)
    for item in done.omitted:
        echo(f"Left out {item.path}: {item.reason}", sys.stderr)
    echo(f"{done.runs} runs, {len(done.tables)} tables. Open {out / 'index.html'}")


def compare(
    paths: Paths,
    baseline: Annotated[
        str | None, Option(help="METHOD or METHOD/MODEL.  [default: plain FedAvg, if any]")
    ] = None,
    model: Annotated[str | None, Option(help="Models, for example plain,wima100.")] = None,
    by: Annotated[
        str | None, Option(help="Settings that identify methods.  [default: all that vary]")
    ] = None,
    metric: Metric = "accuracy",
    last: Last = None,
    target: Target = None,
    out: Annotated[
        Path | None, Option(help="Folder for Markdown, LaTeX, CSV and a figure.")
    ] = None,
    force: Annotated[bool, Option(help="Replace an earlier comparison.")] = False,
) -> None:
    """Compare methods over seeds: paired differences to a baseline, with intervals."""
    from rich.console import Console

    from wima.report import compare as comparing

    measure = Measure(metric, last, target)
    check_measure(measure)
    if out is not None:
        comparing.check_out(out, force)
    models, settings = (
        [name.strip() for name in names.split(",")] if names else [] for names in (model, by)
    )
    made = comparing.compare(paths, measure, baseline, models, settings)
    for item in made.omitted:
        echo(f"Left out {item.path}: {item.reason}", sys.stderr)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(made))
    for note in (*comparing.caption(made), *comparing.warnings(made)):
        echo(note)
    if out is not None:
        comparing.write_comparison(made, out, command_line(), force)
        echo(f"Written: {out / 'compare.md'}, .tex, .csv, .png and .pdf")


def _table(comparison: Comparison) -> Table:
    """The comparison, with method and model in one column; the best of each column is bold."""
    from rich import box, table as tables, text

    from wima.report import compare as comparing

    shown = comparing.grid(comparison, comparing.constant_columns(comparison))
    table = tables.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method/model", overflow="fold")
    for name in shown.header[shown.labels :]:
        heading = printable(name).replace(" ", "\n", 1)  # two lines: narrow
        table.add_column(text.Text(heading), justify="right", no_wrap=True)
    for number, (method, model, *cells) in enumerate(shown.lines):
        between = "/" if len(f"{method}/{model}") <= LONG else "\n  /"
        styles = ["bold" if (number, i) in shown.best else "" for i in range(2, len(shown.header))]
        numbers = [text.Text(one, style=style) for one, style in zip(cells, styles, strict=True)]
        table.add_row(cell(method).append(between).append_text(cell(model)), *numbers)
    return table


def show(run: Run, path: Path) -> None:
    """Print the table of a finished run, and plot its curves into its folder."""
    from rich.console import Console

    from wima.runs.run import summarize
    from wima.runs.summary import draw_curves

    draw_curves(run.curves, run.title, path / "curves.png")
    Console().print(summarize(run))
    echo(f"Records: {path / 'records.jsonl'}")
    echo(f"Picture: {path / 'curves.png'}")


def runs_table(folder: Path) -> Table:
    """The runs in a folder and its subfolders: state, progress and final accuracy."""
    from rich.table import Table

    from wima.runs.folder import run_folders
    from wima.runs.run import ending, read_run, state_of

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
