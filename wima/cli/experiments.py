"""The commands that execute many runs: `wima paper`, `wima sweep` and `wima tune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from wima.cli.arguments import Overrides, Source
from wima.core.errors import RunError, check, unknown
from wima.core.measure import Measure
from wima.core.signals import Interrupted
from wima.core.text import cell, command_line, echo

if TYPE_CHECKING:
    from wima.experiments import plan, sheet as sheets, sweep as sweeps, tune as trial

Seeds = Annotated[str | None, Option(help="Seeds, for example 0,1,2 or 0-4.")]
Jobs = Annotated[int | None, Option(min=1, help="Parallel runs.  [default: one per core]")]
Grid = Annotated[list[str] | None, Option(help="An axis: key=value,value; may be repeated.")]


def _of_slurm(meaning: str, least: int | None = 1) -> Any:
    return Option(min=least, help=f"With --slurm: {meaning}")


@dataclass(frozen=True)
class Execution:
    """How the runs of a sheet are executed: options of `wima paper` and `wima sweep`."""

    jobs: Jobs = None
    out: Annotated[Path | None, Option(help="The folder for the runs.")] = None
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be run.")] = False
    watch: Annotated[bool, Option("--watch", help="Only show the progress of the runs.")] = False
    slurm: Annotated[bool, Option("--slurm", help="Run as a SLURM array job.")] = False
    # The fields of `Resources`:
    partition: Annotated[str | None, _of_slurm("the partition.", None)] = None
    time: Annotated[int | None, _of_slurm("minutes per job.  [default: 60]", 5)] = None
    cpus: Annotated[int | None, _of_slurm("cores per run.  [default: 1]")] = None
    gpus: Annotated[int | None, _of_slurm("GPUs per run.  [default: none]")] = None
    memory: Annotated[int | None, _of_slurm("GB per run.")] = None
    parallel: Annotated[int | None, _of_slurm("parallel runs.")] = None


def with_execution_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of `Execution` as options, in place of its argument `how`."""
    fields = signature(Execution, eval_str=True).parameters

    @wraps(command)
    def command_with_options(**values: Any) -> None:
        how = Execution(**{name: values.pop(name) for name in fields})
        command(**values, how=how)

    own = signature(command, eval_str=True)
    parameters = [p for p in (*own.parameters.values(), *fields.values()) if p.name != "how"]
    # typer reads these instead of the function's own.
    command_with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command_with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return command_with_options


@with_execution_options
def paper(
    name: Annotated[
        str | None, Argument(metavar="EXPERIMENT", help="A table or figure, or a .toml file.")
    ] = None,
    scale: Annotated[
        str, Option(help="paper, cpu, resnet8 or smoke; see docs/experiments.md.")
    ] = "cpu",
    seeds: Seeds = None,
    only: Annotated[
        str | None, Option(help="Methods and settings to run, for example fedavg,femnist.")
    ] = None,
    *,
    how: Execution,
) -> None:
    """Run the missing runs of a table or figure of the paper; without a name, list them."""
    from wima.experiments import plan

    if name is None:
        for label, experiment in plan.experiments().items():
            print(f"{label:<14} {experiment.shown or 'ours':<9} {experiment.title}")
        return
    label, experiment = plan.find_experiment(name)
    scales = plan.scales()
    if scale not in scales:
        raise unknown("scale", scale, scales)
    listed = plan.parse_seeds(seeds) if seeds else scales[scale].seeds
    names = only.split(",") if only else []
    command = command_line()
    sheet, runs = plan.expand(label, experiment, scale, scales[scale], listed, command, names)
    execute(sheet, runs, how.out or Path("runs") / scale, how)


@with_execution_options
def sweep(
    source: Source,
    overrides: Overrides = None,
    grid: Grid = None,
    seeds: Seeds = None,
    name: Annotated[str, Option(help="Name of the table in reports.")] = "sweep",
    *,
    how: Execution,
) -> None:
    """Run a grid of settings for several seeds: wima sweep digits --grid lr=0.1,0.05 --seeds 0-2"""
    from wima.experiments.plan import expand_grid, parse_seeds

    listed = parse_seeds(seeds or "0")
    sheet, runs = expand_grid(name, source, overrides or [], grid or [], listed, command_line())
    execute(sheet, runs, how.out or Path("runs") / name, how)


def execute(sheet: sheets.Sheet, runs: list[plan.Job], folder: Path, how: Execution) -> None:
    """Execute the missing runs of a sheet and show their progress."""
    from wima.core.machine import cores
    from wima.experiments import sheet as sheets, slurm, sweep as sweeps

    options = {name: getattr(how, name) for name in slurm.Resources._fields}
    options = {name: value for name, value in options.items() if value is not None}
    check(how.slurm or not options, f"--{next(iter(options), '')} is for SLURM jobs; add --slurm.")
    resources = slurm.Resources(**options)
    submits, here = how.slurm and not how.watch, not (how.slurm or how.watch)
    if submits:
        check(how.jobs is None, "--jobs is for this machine; with --slurm, use --parallel.")
        slurm.check_available()
    if how.dry_run:
        remote = None if here else slurm.RemoteRuns(runs, folder)
        for state in remote.states if remote else sweeps.states_of(runs, folder):
            echo(f"{state.state:<11} {state.job.name}")
        if submits and (left := slurm.missing(runs, folder)):
            echo(f"\n{slurm.script(len(left), folder, resources)}")
        return
    progress: sweeps.Runs
    if how.watch:
        check(folder.is_dir(), f"The folder {folder} does not exist; there are no runs to watch.")
        progress = slurm.RemoteRuns(runs, folder)
    elif here:
        progress = sweeps.Sweep(runs, folder, how.jobs or cores())
        sheets.write_sheet(sheet, folder)
    else:
        if left := slurm.missing(runs, folder):
            slurm.submit(left, folder, resources)
        sheets.write_sheet(sheet, folder)
        echo(f"Submitted {len(left)} of {len(runs)} runs. Ctrl-C closes the table, not the jobs.")
        progress = slurm.RemoteRuns(runs, folder)
    progress.follow()
    again = "The same command resumes the remaining runs."
    if progress.stopping:
        elsewhere = "The runs continue; the same command with --watch shows them again."
        raise Interrupted(f"{progress.summary()}\n{again if here else elsewhere}")
    if any(state.state not in ("done", "diverged") for state in progress.states):
        raise RunError(f"{progress.summary()}\n{again}")
    echo(f"{progress.summary()}\n`wima report {folder} --out REPORT` shows them.")


def tune(
    source: Source,
    overrides: Overrides = None,
    grid: Annotated[
        list[str] | None,
        Option(help="An axis: key=value,value.  [default: the paper's grid]"),
    ] = None,
    space: Annotated[
        list[str] | None, Option(help="A range for Optuna: key=low..high[:log].")
    ] = None,
    trials: Annotated[
        int | None, Option(min=1, help="With --space: number of trials.  [default: 20]")
    ] = None,
    metric: Annotated[str, Option(help="The metric to optimize.")] = "accuracy",
    model: Annotated[
        str | None, Option(help="Model: plain, wima-auto, ...  [default: the first average]")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    out: Annotated[Path, Option(help="The folder for the runs.")] = Path("runs/tune"),
) -> None:
    """Find the best settings: wima tune digits --grid lr=0.1,0.05 or --space lr=0.01..1:log"""
    from wima.experiments.plan import expand_grid, parse_seeds

    check(not (grid and space), "Use --grid or --space, not both.")
    check(bool(space) or trials is None, "--trials is for --space; a grid has a trial per point.")
    check(
        not space or jobs is None,
        "--jobs is for grids; with --space, each trial depends on the results of earlier ones.",
    )
    changes, sign, listed = overrides or [], Measure(metric).sign, parse_seeds(seeds or "0")

    from wima.experiments import tune as trial  # imported here: errors need not wait for torch
    from wima.runs import settings

    if space:
        search = trial.Search(
            source=source,
            overrides=changes,
            ranges=trial.parse_space(space),
            seeds=listed,
            command=command_line(),
        )
        objective = trial.objective_of(search.corners(), model, metric, sign)
        trial.check_available()
        sheet, runs = trial.run_trials(search, out, trials or 20, objective)
    else:
        axes = grid or trial.paper_axes(settings.load_settings(source, changes))
        sheet, runs = expand_grid(trial.NAME, source, changes, axes, listed, command_line())
        objective = trial.objective_of(sheet, model, metric, sign)
        try:
            execute(sheet, runs, out, Execution(jobs))
        except RunError as error:
            echo(str(error))
    _show_trials(sheet, runs, out, objective)


def _show_trials(
    sheet: sheets.Sheet, jobs: list[plan.Job], folder: Path, objective: trial.Objective
) -> None:
    """Print the trials and write the settings of the best."""
    from rich.console import Console
    from rich.table import Table

    from wima.experiments import tune as trial

    trials, measure = list(trial.results(sheet, folder, objective)), Measure(objective.metric)
    span = f"mean over the last {sheet.last} rounds and over seeds"
    table = Table(title=cell(f"{objective.model}: {measure.title}, {span}"))
    for heading in ("trial", "settings", "state", "rounds", objective.metric):
        table.add_column(cell(heading), overflow="fold")
    for number, (point, state, rounds, value) in enumerate(trials, 1):
        table.add_row(*map(cell, (str(number), point, state, rounds, measure.number(value))))
    Console().print(table)
    best = trial.best_of(trials, objective)
    if best is None:
        raise RunError("No trial finished, so there is no best one.")
    file = trial.write_best(best, sheet, jobs, folder)
    echo(f"Best: {best.point}. Run it: wima run {file}")
    echo("It was chosen on the test data, so its result is optimistic.")
    left = sum(result.state not in trial.OVER for result in trials)
    if left:
        raise RunError(f"{left} of {len(trials)} trials failed; the same command repeats them.")
