"""The trials of `wima tune`: their scores, and the settings of the best.

A trial is a row of a sheet: a point in the space of settings, with a run for each seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from wima.core.errors import UsageError, check, unknown
from wima.core.text import printable
from wima.experiments.definition import methods
from wima.experiments.expand import Job
from wima.experiments.sheet import Sheet
from wima.experiments.sweep import ENDED
from wima.runs.folder import ending, read_run, state_of
from wima.runs.settings import Settings, as_choice
from wima.storage.files import replace_text

NAME, BEST = "tune", "best.toml"
OVER = (*ENDED, "pruned")  # states of trials that are not repeated


class Objective(NamedTuple):
    """The score of a trial: a model's metric, averaged over the last rounds and over seeds."""

    model: str
    metric: str
    sign: int = 1  # -1 if less is better

    def of(self, path: Path) -> float:
        """The score of the run at a path."""
        metrics = ending(read_run(path)).curves.metrics.get(self.model, {})
        if metrics and self.metric not in metrics:
            raise unknown("metric", self.metric, metrics)
        return fmean(metrics[self.metric][1]) if metrics else nan


class Result(NamedTuple):
    """The state and score of a trial."""

    point: str  # key=value, key=value
    state: str  # done, or the state of its first unfinished run
    rounds: str  # of all its seeds
    value: float  # NaN unless it is done


def objective_of(sheet: Sheet, model: str | None, metric: str, sign: int) -> Objective:
    """The objective of the trials in a sheet; by default, for the first average."""
    chosen = model or next(iter(sheet.headings[1:]), "plain")
    for cell in sheet.cells:
        if chosen not in cell.models:
            raise unknown(f"model of {cell.row}", chosen, cell.models)
    return Objective(chosen, metric, sign)


def paper_axes(settings: Settings) -> list[str]:
    """The grid over which the paper tunes the algorithm and server optimizer of the settings."""
    names = (settings.algorithm.name, settings.server.name)
    for method in methods().values():
        if tuple(as_choice(method.set[key]).name for key in ("algorithm", "server")) == names:
            axes = [f"{key}={','.join(map(str, values))}" for key, values in method.tune.items()]
            check(bool(axes), f"The paper does not tune {method.label}; use --grid or --space.")
            return axes
    raise UsageError(
        f"The paper does not tune {' with server '.join(names)}; use --grid or --space."
    )


def results(sheet: Sheet, folder: Path, objective: Objective) -> Iterator[Result]:
    """The state and score of each trial, read from the folder."""
    for row in sheet.rows:
        paths = [folder / cell.run for cell in sheet.cells if cell.row == row]
        yield _result(row, paths, objective)


def _result(point: str, paths: list[Path], objective: Objective) -> Result:
    try:
        runs = [read_run(path) for path in paths if path.exists()]
        rounds = "+".join(str(ending(run).t) for run in runs)
    except UsageError:
        return Result(point, "broken", "", nan)
    states = [state_of(run) for run in runs]
    other = [state for state in states if state != "done"]
    state = (other or ["done" if len(runs) == len(paths) else "waiting"])[0]
    return Result(point, state, rounds, fmean(map(objective.of, paths)) if state == "done" else nan)


def best_of(found: list[Result], objective: Objective) -> Result | None:
    """The best of the finished trials; None if there are none."""
    known = [result for result in found if isfinite(result.value)]
    return max(known, key=lambda result: objective.sign * result.value, default=None)


def write_best(best: Result, sheet: Sheet, jobs: list[Job], folder: Path) -> Path:
    """Write a settings file of the best trial with its first seed, for `wima run`."""
    run = next(cell.run for cell in sheet.cells if cell.row == best.point)
    settings = next(job.settings for job in jobs if job.name == run)
    path = folder / BEST
    replace_text(path, f"# {printable(sheet.command)}: {best.point}\n{settings.to_toml()}")
    return path
