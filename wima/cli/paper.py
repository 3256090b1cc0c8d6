"""The commands `wima paper` and `wima sweep`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wima.cli.arguments import Source
from wima.core.errors import RunError, unknown
from wima.core.text import echo

if TYPE_CHECKING:
    from wima.experiments.expand import Job
    from wima.experiments.sheet import Sheet

Seeds = Annotated[str | None, typer.Option(help="Seeds, like 0,1,2 or 0-4.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at the same time; one per core.")]
Out = Annotated[Path | None, typer.Option(help="The folder that holds the runs.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")]


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="One of them, or a .toml file.")
    ] = None,
    scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "cpu",
    seeds: Seeds = None,
    only: Annotated[
        str | None, typer.Option(help="Methods and settings to keep, like fedavg,femnist.")
    ] = None,
    jobs: Jobs = None,
    out: Out = None,
    dry_run: Dry = False,
) -> None:
    """Run what is missing of a table or figure of the paper; without a name, list them."""
    from wima.experiments.definition import experiments, find_experiment, scales
    from wima.experiments.expand import expand
    from wima.experiments.grid import parse_seeds

    if name is None:
        for known, experiment in experiments().items():
            print(f"{known:<14} {experiment.shown or 'ours':<9} {experiment.title}")
        return
    label, experiment = find_experiment(name)
    if scale not in scales():
        raise unknown("scale", scale, scales())
    chosen = scales()[scale]
    listed = parse_seeds(seeds) if seeds else chosen.seeds
    kept = only.split(",") if only else []
    sheet, runs = expand(label, experiment, scale, chosen, listed, _command(), kept)
    _execute(sheet, runs, out or Path("runs") / scale, jobs, dry_run)


def sweep(
    source: Source,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of all runs.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="An axis: key=value,value; may be given again.")
    ] = None,
    seeds: Seeds = None,
    name: Annotated[str, typer.Option(help="Of the table in reports.")] = "sweep",
    jobs: Jobs = None,
    out: Out = None,
    dry_run: Dry = False,
) -> None:
    """Run a grid of settings for several seeds: wima sweep digits --grid lr=0.1,0.05 --seeds 0-2"""
    from wima.experiments.grid import expand_grid, parse_seeds

    listed = parse_seeds(seeds or "0")
    sheet, runs = expand_grid(name, source, overrides or [], grid or [], listed, _command())
    _execute(sheet, runs, out or Path("runs") / name, jobs, dry_run)


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _execute(sheet: Sheet, runs: list[Job], folder: Path, jobs: int | None, dry: bool) -> None:
    from wima.core.machine import cores
    from wima.experiments.live import follow, summary
    from wima.experiments.sheet import write_sheet
    from wima.experiments.sweep import Sweep
    from wima.runs.launch import Interrupted

    runner = Sweep(runs, folder, jobs or cores())
    if dry:
        for state in runner.states:
            echo(f"{state.state:<11} {state.job.name}")
        return
    write_sheet(sheet, folder)
    follow(runner)
    again = "The same command resumes what is left."
    if runner.stopping:
        raise Interrupted(f"{summary(runner)}\n{again}")
    failed = [s for s in runner.states if s.state not in ("done", "diverged")]
    if failed:
        raise RunError(f"{summary(runner)}\n{again}")
    echo(f"{summary(runner)}\n`wima report {folder} --out REPORT` shows them.")
