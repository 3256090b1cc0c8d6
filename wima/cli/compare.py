"""`wima compare`: compares methods over seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wima.core.text import cell, command_line, echo, printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from wima.report.compare import Comparison

WIDTH = 100  # of the table, if the output is not a terminal
LONG = 26  # characters; longer names take two lines


def compare(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain them.")],
    baseline: Annotated[
        str | None, typer.Option(help="METHOD or METHOD/MODEL.  [default: plain FedAvg, if any]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Models, for example plain,wima100.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Settings that identify methods.  [default: all that vary]")
    ] = None,
    metric: Annotated[str, typer.Option(help="The metric to compare.")] = "accuracy",
    last: Annotated[int | None, typer.Option(help="Number of last rounds to average.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Count the rounds until this value, for example 0.8.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for Markdown, LaTeX, CSV and a figure.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace an earlier comparison.")] = False,
) -> None:
    """Compare methods over seeds: paired differences to a baseline, with intervals."""
    from rich.console import Console

    from wima.core.measure import Measure, check_measure
    from wima.report.compare import (
        caption,
        check_out,
        compare as compare_runs,
        warnings,
        write_comparison,
    )

    measure = Measure(metric, last, target)
    check_measure(measure)
    if out is not None:
        check_out(out, force)
    made = compare_runs(paths, measure, baseline, _split(model), _split(by))
    for item in made.omitted:
        echo(f"Left out {item.path}: {item.reason}", sys.stderr)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(made))
    for note in (*caption(made), *warnings(made)):
        echo(note)
    if out is not None:
        write_comparison(made, out, command_line(), force)
        echo(f"Written: {out / 'compare.md'}, .tex, .csv, .png and .pdf")


def _split(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _table(comparison: Comparison) -> Table:
    """The comparison, with method and model in one column; the best of each column is bold."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from wima.report.compare import HOLM, SEEDS, P, grid, same_seeds, without

    unwanted = {SEEDS} if same_seeds(comparison) else set()
    shown = without(grid(comparison), unwanted | (set() if comparison.tests else {P, HOLM}))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method/model", overflow="fold")
    for name in shown.header[shown.labels :]:
        heading = printable(name).replace(" ", "\n", 1)  # two lines: narrow
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for number, (method, model, *texts) in enumerate(shown.lines):
        styles = ["bold" if (number, i) in shown.best else "" for i in range(2, len(shown.header))]
        cells = [Text(text, style=style) for text, style in zip(texts, styles, strict=True)]
        table.add_row(_name(method, model), *cells)
    return table


def _name(method: str, model: str) -> Text:
    """METHOD/MODEL, on two lines if it is long."""
    between = "/" if len(f"{method}/{model}") <= LONG else "\n  /"
    return cell(method).append(between).append_text(cell(model))
