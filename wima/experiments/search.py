"""`wima tune --space`: sequential trials, each a row of the sheet with a run per seed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from wima.core.checks import is_number
from wima.core.errors import RunError, UsageError, check, unknown
from wima.core.signals import Interrupted, Pruned
from wima.core.text import echo
from wima.experiments.expand import Job
from wima.experiments.grid import expand_points
from wima.experiments.sheet import SUFFIX, Sheet, read_sheet, write_sheet
from wima.experiments.space import Point, Range, parse_point
from wima.experiments.sweep import end_of
from wima.experiments.tune import NAME, OVER, Objective, Result, results
from wima.experiments.worker import run_or_resume
from wima.runs.folder import read_run
from wima.runs.launch import Follow, Progress
from wima.simulation.simulate import Record

if TYPE_CHECKING:
    from optuna import Trial


class Search(NamedTuple):
    """What is tuned."""

    source: str
    overrides: list[str]
    ranges: list[Range]
    seeds: list[int]
    command: str

    def expand(self, points: Sequence[Point]) -> tuple[Sheet, list[Job]]:
        """The sheet of these trials, and their runs."""
        texts = [[f"{key}={value}" for key, value in point.items()] for point in points]
        return expand_points(NAME, self.source, self.overrides, texts, self.seeds, self.command)

    def corners(self) -> Sheet:
        """Trials at both ends of all ranges; raises if settings cannot have these values."""
        low, high = {r.key: r.low for r in self.ranges}, {r.key: r.high for r in self.ranges}
        return self.expand([low, high])[0]


def check_available() -> None:
    """Raise an error without Optuna, before anything is written."""
    check(
        find_spec("optuna") is not None,
        "--space needs Optuna, which is not installed: pip install 'wima[tune]'",
    )


def run_trials(
    wanted: Search, folder: Path, trials: int, objective: Objective
) -> tuple[Sheet, list[Job]]:
    """Run trials until there are `trials`; returns all trials in the folder."""
    from wima.experiments.study import History

    points = _points(wanted, folder)
    history = History(wanted.ranges, objective, wanted.seeds[0])
    for number in range(max(trials, len(points))):
        point = history.propose(points) if number == len(points) else points[number]
        if point is None:
            echo("The ranges contain no untried values.")
            break
        points[number : number + 1] = [point]
        write_sheet(wanted.expand(points)[0], folder)
        sheet, jobs = wanted.expand([point])
        (result,) = results(sheet, folder, objective)
        if result.state not in OVER:
            echo(f"Trial {number + 1}: {result.point}")
            trial = history.begin(point, jobs[0].settings.rounds)
            problem = _run(jobs, folder, trial, objective)
            (result,) = results(sheet, folder, objective)
            _report(problem, result, number)
        history.add(point, result, _curve(folder / jobs[0].name, objective))
    return wanted.expand(points)


def _points(wanted: Search, folder: Path) -> list[Point]:
    """The points of earlier trials in the folder."""
    path = folder / f"{NAME}{SUFFIX}"
    points = [parse_point(row) for row in read_sheet(path).rows] if path.exists() else []
    for point in points:
        same = list(point) == [r.key for r in wanted.ranges] and all(map(is_number, point.values()))
        check(
            same and all(r.low <= point[r.key] <= r.high for r in wanted.ranges),
            f"{folder} contains trials outside of these ranges, such as {point}; widen the ranges "
            "or choose another --out.",
        )
    return points


def _run(jobs: list[Job], folder: Path, trial: Trial, objective: Objective) -> str:
    """Execute the unfinished runs of a trial; returns the reason if it failed."""
    for number, job in enumerate(jobs):
        path = folder / job.name
        end, message = end_of(path), ""
        if end not in OVER:
            # Prune by the first seed, which all trials share.
            follow: Follow = Progress if number else partial(Pruning, trial, objective, path)
            end, message = run_or_resume(path, job.settings.to_toml(), follow)
        if end == "interrupted":
            raise Interrupted(f"{message}\nThe same command continues the search.")
        if end != "done":
            return message if end == "failed" else ""
    return ""


class Pruning:
    """Shows the progress of a run, and prunes it if the median of earlier trials was better."""

    def __init__(
        self, trial: Trial, objective: Objective, path: Path, rounds: int, done: int
    ) -> None:
        self._trial, self._objective, self._rounds = trial, objective, rounds
        self._progress = Progress(rounds, done)
        for t, value in _curve(path, objective).items():
            trial.report(value, t)

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.__exit__(*exception)

    def update(self, record: Record) -> None:
        self._progress.update(record)
        model, metric, _ = self._objective
        metrics = record.metrics.get(model)
        if metrics is None or record.t == self._rounds:
            return
        if metric not in metrics:
            raise unknown("metric", metric, metrics)
        self._trial.report(metrics[metric], record.t)
        if self._trial.should_prune():
            raise Pruned(f"Pruned after {record.t} rounds: the median trial had a better {metric}.")


def _curve(path: Path, objective: Objective) -> dict[int, float]:
    """The metric by round, as far as the run is recorded."""
    try:
        rounds, values = read_run(path).curve(objective.model, objective.metric)
    except (UsageError, KeyError):
        return {}
    return {t: value for t, value in zip(rounds, values, strict=True) if isfinite(value)}


def _report(problem: str, result: Result, number: int) -> None:
    """Print how a trial ended; raises an error if the first one failed."""
    if problem and number == 0:
        raise RunError(problem)
    if problem:
        echo(f"Trial {number + 1} failed: {problem}", sys.stderr)
    else:
        value = f" {result.value:.4f}" if isfinite(result.value) else ""
        echo(f"Trial {number + 1}: {result.state}{value}")
