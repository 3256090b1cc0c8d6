"""The commands that execute many runs: `wima paper`, `wima sweep` and `wima tune`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from wima.cli.arguments import Source
from wima.core.errors import RunError, check, unknown
from wima.core.text import cell, command_line, echo

if TYPE_CHECKING:
    from wima.experiments.plan import Job
    from wima.experiments.sheet import Sheet
    from wima.experiments.slurm import Resources
    from wima.experiments.sweep import Runs
    from wima.experiments.tune import Objective

Seeds = Annotated[str | None, typer.Option(help="Seeds, for example 0,1,2 or 0-4.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Parallel runs.  [default: one per core]")]


class Execution(NamedTuple):
    """How the runs of a sheet are executed: options of `wima paper` and `wima sweep`."""

    jobs: Jobs = None
    out: Annotated[Path | None, typer.Option(help="The folder for the runs.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be run.")] = False
    watch: Annotated[bool, typer.Option("--watch", help="Only show the progress of the runs.")] = (
        False
    )
    slurm: Annotated[bool, typer.Option("--slurm", help="Run as a SLURM array job.")] = False
    # The fields of `Resources`:
    partition: Annotated[str | None, typer.Option(help="With --slurm: the partition.")] = None
    time: Annotated[
        int | None, typer.Option(min=5, help="With --slurm: minutes per job.  [default: 60]")
    ] = None
    cpus: Annotated[
        int | None, typer.Option(min=1, help="With --slurm: cores per run.  [default: 1]")
    ] = None
    gpus: Annotated[
        int | None, typer.Option(min=1, help="With --slurm: GPUs per run.  [default: none]")
    ] = None
    memory: Annotated[int | None, typer.Option(min=1, help="With --slurm: GB per run.")] = None
    parallel: Annotated[int | None, typer.Option(min=1, help="With --slurm: parallel runs.")] = None

    def resources(self) -> Resources | None:
        """The resources of a SLURM job; None without --slurm."""
        from wima.experiments.slurm import Resources

        values = {name: getattr(self, name) for name in Resources._fields}
        values = {name: value for name, value in values.items() if value is not None}
        check(
            self.slurm or not values, f"--{next(iter(values), '')} is for SLURM jobs; add --slurm."
        )
        return Resources(**values) if self.slurm else None


def with_execution_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of `Execution` as options, in place of its argument `how`."""
    fields = get_type_hints(Execution, include_extras=True)

    @wraps(command)
    def command_with_options(**values: Any) -> None:
        how = Execution(**{name: values.pop(name) for name in fields})
        command(**values, how=how)

    parameters = dict(signature(command, eval_str=True).parameters)
    del parameters["how"]
    for name, hint in fields.items():
        default = Execution._field_defaults[name]
        parameters[name] = Parameter(
            name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=hint
        )
    # typer reads these instead of the function's own.
    command_with_options.__signature__ = Signature([*parameters.values()])  # type: ignore[attr-defined]
    command_with_options.__annotations__ = {n: p.annotation for n, p in parameters.items()}
    return command_with_options


@with_execution_options
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
    *,
    how: Execution,
) -> None:
    """Run the missing runs of a table or figure of the paper; without a name, list them."""
    from wima.experiments.plan import expand, experiments, find_experiment, parse_seeds, scales

    if name is None:
        for label, experiment in experiments().items():
            print(f"{label:<14} {experiment.shown or 'ours':<9} {experiment.title}")
        return
    resources = how.resources()
    label, experiment = find_experiment(name)
    if scale not in scales():
        raise unknown("scale", scale, scales())
    listed = parse_seeds(seeds) if seeds else scales()[scale].seeds
    names = only.split(",") if only else []
    sheet, runs = expand(label, experiment, scale, scales()[scale], listed, command_line(), names)
    execute(sheet, runs, how.out or Path("runs") / scale, how, resources)


@with_execution_options
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
    *,
    how: Execution,
) -> None:
    """Run a grid of settings for several seeds: wima sweep digits --grid lr=0.1,0.05 --seeds 0-2"""
    from wima.experiments.plan import expand_grid, parse_seeds

    resources = how.resources()
    listed = parse_seeds(seeds or "0")
    sheet, runs = expand_grid(name, source, overrides or [], grid or [], listed, command_line())
    execute(sheet, runs, how.out or Path("runs") / name, how, resources)


def execute(
    sheet: Sheet,
    runs: list[Job],
    folder: Path,
    how: Execution,
    resources: Resources | None = None,
) -> None:
    """Execute the missing runs of a sheet and show their progress."""
    from wima.core.signals import Interrupted
    from wima.experiments.slurm import RemoteRuns, check_available, missing, script
    from wima.experiments.sweep import states_of

    submits = resources is not None and not how.watch
    if submits:
        check(how.jobs is None, "--jobs is for this machine; with --slurm, use --parallel.")
        check_available()
    here = resources is None and not how.watch
    if how.dry_run:
        states = states_of(runs, folder) if here else RemoteRuns(runs, folder).states
        for state in states:
            echo(f"{state.state:<11} {state.job.name}")
        if submits and resources and (left := missing(runs, folder)):
            echo(f"\n{script(len(left), folder, resources)}")
        return
    progress = _started(sheet, runs, folder, how, resources)
    progress.follow()
    again = "The same command resumes the remaining runs."
    if progress.stopping:
        elsewhere = "The runs continue; the same command with --watch shows them again."
        raise Interrupted(f"{progress.summary()}\n{again if here else elsewhere}")
    if any(state.state not in ("done", "diverged") for state in progress.states):
        raise RunError(f"{progress.summary()}\n{again}")
    echo(f"{progress.summary()}\n`wima report {folder} --out REPORT` shows them.")


def _started(
    sheet: Sheet, runs: list[Job], folder: Path, how: Execution, resources: Resources | None
) -> Runs:
    """The sheet's runs: on this machine, submitted to SLURM, or only watched."""
    from wima.core.machine import cores
    from wima.experiments.sheet import write_sheet
    from wima.experiments.slurm import RemoteRuns, missing, submit
    from wima.experiments.sweep import Sweep

    if how.watch:
        check(folder.is_dir(), f"The folder {folder} does not exist; there are no runs to watch.")
    elif resources is None:
        sweep = Sweep(runs, folder, how.jobs or cores())
        write_sheet(sheet, folder)
        return sweep
    else:
        left = missing(runs, folder)
        if left:
            submit(left, folder, resources)
        write_sheet(sheet, folder)
        echo(f"Submitted {len(left)} of {len(runs)} runs. Ctrl-C closes the table, not the jobs.")
    return RemoteRuns(runs, folder)


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
    from wima.core.measure import Measure
    from wima.experiments.plan import expand_grid, parse_seeds

    check(not (grid and space), "Use --grid or --space, not both.")
    check(bool(space) or trials is None, "--trials is for --space; a grid has a trial per point.")
    check(
        not space or jobs is None,
        "--jobs is for grids; with --space, each trial depends on the results of earlier ones.",
    )
    changes, sign, listed = overrides or [], Measure(metric).sign, parse_seeds(seeds or "0")

    from wima.experiments import tune as trial  # imported here: errors need not wait for torch

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
        from wima.runs.settings import load_settings

        axes = grid or trial.paper_axes(load_settings(source, changes))
        sheet, runs = expand_grid(trial.NAME, source, changes, axes, listed, command_line())
        objective = trial.objective_of(sheet, model, metric, sign)
        try:
            execute(sheet, runs, out, Execution(jobs))
        except RunError as error:
            echo(str(error))
    _show_trials(sheet, runs, out, objective)


def _show_trials(sheet: Sheet, jobs: list[Job], folder: Path, objective: Objective) -> None:
    """Print the trials and write the settings of the best."""
    from rich.console import Console
    from rich.table import Table

    from wima.core.measure import Measure
    from wima.experiments.tune import OVER, best_of, results, write_best

    trials, measure = list(results(sheet, folder, objective)), Measure(objective.metric)
    span = f"mean over the last {sheet.last} rounds and over seeds"
    table = Table(title=cell(f"{objective.model}: {measure.title}, {span}"))
    for heading in ("trial", "settings", "state", "rounds", objective.metric):
        table.add_column(cell(heading), overflow="fold")
    for number, (point, state, rounds, value) in enumerate(trials, 1):
        table.add_row(*map(cell, (str(number), point, state, rounds, measure.number(value))))
    Console().print(table)
    best = best_of(trials, objective)
    if best is None:
        raise RunError("No trial finished, so there is no best one.")
    echo(f"Best: {best.point}. Run it: wima run {write_best(best, sheet, jobs, folder)}")
    echo("It was chosen on the test data, so its result is optimistic.")
    left = sum(result.state not in OVER for result in trials)
    if left:
        raise RunError(f"{left} of {len(trials)} trials failed; the same command repeats them.")
