"""The command `wima tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wima.cli.arguments import Source
from wima.cli.paper import How, Jobs, Seeds, execute
from wima.core.errors import RunError, check
from wima.core.text import cell, command_line, echo

if TYPE_CHECKING:
    from wima.experiments.expand import Job
    from wima.experiments.sheet import Sheet
    from wima.experiments.tune import Objective


def tune(
    source: Source,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings for all trials.")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="An axis: key=value,value.  [default: the paper's grid]"),
    ] = None,
    space: Annotated[
        list[str] | None, typer.Option(help="A range for Optuna: key=low..high[:log].")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="With --space: number of trials.  [default: 20]")
    ] = None,
    metric: Annotated[str, typer.Option(help="The metric to optimize.")] = "accuracy",
    model: Annotated[
        str | None, typer.Option(help="Model: plain, wima-auto, ...  [default: the first average]")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="The folder for the runs.")] = Path("runs/tune"),
) -> None:
    """Find the best settings: wima tune digits --grid lr=0.1,0.05 or --space lr=0.01..1:log"""
    from wima.experiments.grid import parse_seeds
    from wima.report.measure import Measure

    check(not (grid and space), "Use --grid or --space, not both.")
    check(bool(space) or trials is None, "--trials is for --space; a grid has a trial per point.")
    check(
        not space or jobs is None,
        "--jobs is for grids; with --space, each trial depends on the results of earlier ones.",
    )
    where = (source, overrides or [])
    scored, listed = (model, metric, Measure(metric).sign), parse_seeds(seeds or "0")
    if space:
        _search(where, space, listed, trials or 20, scored, out)
    else:
        _grid(where, grid, listed, jobs, scored, out)


def _search(
    where: tuple[str, list[str]],
    space: list[str],
    seeds: list[int],
    trials: int,
    scored: tuple[str | None, str, int],
    folder: Path,
) -> None:
    from wima.experiments.search import Search, check_available, run_trials
    from wima.experiments.space import parse_space
    from wima.experiments.tune import objective_of

    wanted = Search(*where, parse_space(space), seeds, command_line())
    objective = objective_of(wanted.corners(), *scored)
    check_available()
    _show(*run_trials(wanted, folder, trials, objective), folder, objective)


def _grid(
    where: tuple[str, list[str]],
    axes: list[str] | None,
    seeds: list[int],
    jobs: int | None,
    scored: tuple[str | None, str, int],
    folder: Path,
) -> None:
    from wima.experiments.grid import expand_grid
    from wima.experiments.tune import NAME, objective_of, paper_axes
    from wima.runs.settings import load_settings

    chosen = axes or paper_axes(load_settings(*where))
    sheet, runs = expand_grid(NAME, *where, chosen, seeds, command_line())
    objective = objective_of(sheet, *scored)
    try:
        execute(sheet, runs, folder, How(jobs, dry=False, watch=False, slurm=None))
    except RunError as error:
        echo(str(error))
    _show(sheet, runs, folder, objective)


def _show(sheet: Sheet, jobs: list[Job], folder: Path, objective: Objective) -> None:
    """Print the trials and write the settings of the best."""
    from rich.console import Console
    from rich.table import Table

    from wima.experiments.tune import OVER, best_of, results, write_best
    from wima.report.measure import Measure

    found, measure = list(results(sheet, folder, objective)), Measure(objective.metric)
    over = f"mean over the last {sheet.last} rounds and over seeds"
    table = Table(title=cell(f"{objective.model}: {measure.title}, {over}"))
    for heading in ("trial", "settings", "state", "rounds", objective.metric):
        table.add_column(cell(heading), overflow="fold")
    for number, (point, state, rounds, value) in enumerate(found, 1):
        table.add_row(*map(cell, (str(number), point, state, rounds, measure.number(value))))
    Console().print(table)
    best = best_of(found, objective)
    if best is None:
        raise RunError("No trial finished, so there is no best one.")
    echo(f"Best: {best.point}. Run it: wima run {write_best(best, sheet, jobs, folder)}")
    echo("It was chosen on the test data, so its result is optimistic.")
    left = sum(result.state not in OVER for result in found)
    if left:
        raise RunError(f"{left} of {len(found)} trials failed; the same command repeats them.")
