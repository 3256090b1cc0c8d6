"""`wima report` and `wima compare`: what run folders show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wima.cli.arguments import Last, Metric, Paths, Target
from wima.core.measure import Measure, check_measure
from wima.core.text import cell, command_line, echo, printable

if TYPE_CHECKING:
    from rich.table import Table

    from wima.report.compare import Comparison

WIDTH = 100  # of the table, if the output is not a terminal
LONG = 26  # characters; longer names take two lines


def report(
    paths: Paths,
    out: Annotated[Path, typer.Option(help="Output folder.")],
    metric: Metric = "accuracy",
    last: Last = None,
    target: Target = None,
    notes: Annotated[
        Path | None,
        typer.Option(help="Notes in Markdown; sections titled like a data set go with it."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace an earlier report.")] = False,
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
        str | None, typer.Option(help="METHOD or METHOD/MODEL.  [default: plain FedAvg, if any]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Models, for example plain,wima100.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Settings that identify methods.  [default: all that vary]")
    ] = None,
    metric: Metric = "accuracy",
    last: Last = None,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for Markdown, LaTeX, CSV and a figure.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace an earlier comparison.")] = False,
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

    unwanted = {comparing.SEEDS} if comparing.same_seeds(comparison) else set()
    unwanted |= set() if comparison.tests else {comparing.P, comparing.HOLM}
    shown = comparing.without(comparing.grid(comparison), unwanted)
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
