"""The commands `wima paper` and `wima sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wima.cli.arguments import Source
from wima.core.errors import RunError, check, unknown
from wima.core.text import command_line, echo

if TYPE_CHECKING:
    from wima.experiments.expand import Job
    from wima.experiments.sheet import Sheet
    from wima.experiments.slurm import Resources
    from wima.experiments.sweep import Sweep
    from wima.experiments.watch import Watch

Seeds = Annotated[str | None, typer.Option(help="Seeds, for example 0,1,2 or 0-4.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Parallel runs.  [default: one per core]")]
Out = Annotated[Path | None, typer.Option(help="The folder for the runs.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Only show what would be run.")]
Watching = Annotated[bool, typer.Option("--watch", help="Only show the progress of the runs.")]
Slurm = Annotated[bool, typer.Option("--slurm", help="Run as a SLURM array job.")]
Partition = Annotated[str | None, typer.Option(help="With --slurm: the partition.")]
Time = Annotated[
    int | None, typer.Option(min=5, help="With --slurm: minutes per job.  [default: 60]")
]
Cpus = Annotated[int | None, typer.Option(min=1, help="With --slurm: cores per run.  [default: 1]")]
Gpus = Annotated[
    int | None, typer.Option(min=1, help="With --slurm: GPUs per run.  [default: none]")
]
Memory = Annotated[int | None, typer.Option(min=1, help="With --slurm: GB per run.")]
Parallel = Annotated[int | None, typer.Option(min=1, help="With --slurm: parallel runs.")]


class How(NamedTuple):
    """How the runs of a sheet are executed."""

    jobs: int | None
    dry: bool
    watch: bool
    slurm: Resources | None


def paper(
    name: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="A table or figure, or a .toml file.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="paper, cpu, resnet8 or smoke; see docs/experiments.md.")
    ] = "cpu",
    seeds: Seeds = None,
    only: Annotated[
        str | None, typer.Option(help="Methods and settings to run, for example fedavg,femnist.")
    ] = None,
    jobs: Jobs = None,
    out: Out = None,
    dry_run: Dry = False,
    watch: Watching = False,
    slurm: Slurm = False,
    partition: Partition = None,
    time: Time = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    parallel: Parallel = None,
) -> None:
    """Run the missing runs of a table or figure of the paper; without a name, list them."""
    from wima.experiments.definition import experiments, find_experiment, scales

    if name is None:
        for known, experiment in experiments().items():
            print(f"{known:<14} {experiment.shown or 'ours':<9} {experiment.title}")
        return
    from wima.experiments.expand import expand  # imported here: the list need not wait for torch
    from wima.experiments.grid import parse_seeds

    wanted = _resources(slurm, partition, time, cpus, gpus, memory, parallel)
    label, experiment = find_experiment(name)
    if scale not in scales():
        raise unknown("scale", scale, scales())
    chosen = scales()[scale]
    listed = parse_seeds(seeds) if seeds else chosen.seeds
    kept = only.split(",") if only else []
    sheet, runs = expand(label, experiment, scale, chosen, listed, command_line(), kept)
    execute(sheet, runs, out or Path("runs") / scale, How(jobs, dry_run, watch, wanted))


def sweep(
    source: Source,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings for all runs.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="An axis: key=value,value; may be repeated.")
    ] = None,
    seeds: Seeds = None,
    name: Annotated[str, typer.Option(help="Name of the table in reports.")] = "sweep",
    jobs: Jobs = None,
    out: Out = None,
    dry_run: Dry = False,
    watch: Watching = False,
    slurm: Slurm = False,
    partition: Partition = None,
    time: Time = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    parallel: Parallel = None,
) -> None:
    """Run a grid of settings for several seeds: wima sweep digits --grid lr=0.1,0.05 --seeds 0-2"""
    from wima.experiments.grid import expand_grid, parse_seeds

    wanted = _resources(slurm, partition, time, cpus, gpus, memory, parallel)
    listed = parse_seeds(seeds or "0")
    sheet, runs = expand_grid(name, source, overrides or [], grid or [], listed, command_line())
    execute(sheet, runs, out or Path("runs") / name, How(jobs, dry_run, watch, wanted))


def _resources(slurm: bool, *values: str | int | None) -> Resources | None:
    """The resources of a job from values in the order of its fields; None without SLURM."""
    from wima.experiments.slurm import Resources

    fields = zip(Resources._fields, values, strict=True)
    given: dict[str, Any] = {name: value for name, value in fields if value is not None}
    check(slurm or not given, f"--{next(iter(given), '')} is for SLURM jobs; add --slurm.")
    return Resources(**given) if slurm else None


def execute(sheet: Sheet, runs: list[Job], folder: Path, how: How) -> None:
    """Execute the missing runs of a sheet and show their progress."""
    from wima.core.signals import Interrupted
    from wima.experiments.live import follow, summary
    from wima.experiments.slurm import check_available

    if how.slurm is not None and not how.watch:
        check(how.jobs is None, "--jobs is for this machine; with --slurm, use --parallel.")
        check_available()
    if how.dry:
        _describe(runs, folder, how)
        return
    runner = _started(sheet, runs, folder, how)
    follow(runner)
    local = how.slurm is None and not how.watch
    again = "The same command resumes the remaining runs."
    if runner.stopping:
        elsewhere = "The runs continue; the same command with --watch shows them again."
        raise Interrupted(f"{summary(runner)}\n{again if local else elsewhere}")
    failed = [s for s in runner.states if s.state not in ("done", "diverged")]
    if failed:
        raise RunError(f"{summary(runner)}\n{again}")
    echo(f"{summary(runner)}\n`wima report {folder} --out REPORT` shows them.")


def _started(sheet: Sheet, runs: list[Job], folder: Path, how: How) -> Sweep | Watch:
    """A sweep of the sheet's runs on this machine, or a watch on runs executed elsewhere."""
    from wima.core.machine import cores
    from wima.experiments.sheet import write_sheet
    from wima.experiments.slurm import missing, submit
    from wima.experiments.sweep import Sweep
    from wima.experiments.watch import Watch

    if how.watch:
        check(folder.is_dir(), f"The folder {folder} does not exist; there are no runs to watch.")
    elif how.slurm is None:
        runner = Sweep(runs, folder, how.jobs or cores())
        write_sheet(sheet, folder)
        return runner
    else:
        left = missing(runs, folder)
        if left:
            submit(left, folder, how.slurm)
        write_sheet(sheet, folder)
        echo(f"Submitted {len(left)} of {len(runs)} runs. Ctrl-C closes the table, not the jobs.")
    return Watch(runs, folder)


def _describe(runs: list[Job], folder: Path, how: How) -> None:
    """Print what would be done: the runs, and the batch script."""
    from wima.experiments.slurm import missing, script
    from wima.experiments.sweep import State
    from wima.experiments.watch import Watch

    elsewhere = how.watch or how.slurm is not None
    states = Watch(runs, folder).states if elsewhere else [State(job, folder) for job in runs]
    for state in states:
        echo(f"{state.state:<11} {state.job.name}")
    if how.slurm is not None and not how.watch and (left := missing(runs, folder)):
        echo(f"\n{script(len(left), folder, how.slurm)}")
