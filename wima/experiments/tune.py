"""`wima tune`: trials of settings, their scores, and the settings of the best.

A trial is a row of a sheet: a point in the space of settings, with a run for each seed.  The points
are those of a grid, or with `--space` Optuna proposes each one from the results of earlier trials
and prunes trials that are worse.

A search stores only its sheet and its runs: Optuna's study is made of their results when a search
starts, and its randomness has an address.  So a search that was stopped continues as if it had not
been, and trials that failed are repeated, which Optuna's own storage does not allow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wima.core.errors import RunError, UsageError, check, is_number, unknown
from wima.core.randomness import rng
from wima.core.signals import Interrupted, Pruned
from wima.core.text import echo, printable
from wima.experiments.plan import Job, expand_points, methods
from wima.experiments.sheet import SUFFIX, Sheet, read_sheet, write_sheet
from wima.experiments.sweep import ELSEWHERE, ENDED, conflicts_in, end_of
from wima.experiments.worker import run_or_resume
from wima.runs.launch import MakeDisplay, ProgressDisplay
from wima.runs.run import ending, read_run, state_of
from wima.runs.settings import Settings, as_choice, parse_override
from wima.simulation.simulate import Record
from wima.storage.files import replace_text

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

NAME, BEST = "tune", "best.toml"
OVER = (*ENDED, "pruned")  # states of trials that are not repeated
SPACE = re.compile(r"(?P<key>[^=]+)=(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")
DIGITS = 3  # significant digits of proposed numbers; more would make no difference
ATTEMPTS = 20  # to propose a point that was not tried
WARM_UP = 4  # runs are not pruned in the first 1 / 4 of the rounds
Point: TypeAlias = dict[str, float]  # key -> value


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
    paths = {row: [folder / c.run for c in sheet.cells if c.row == row] for row in sheet.rows}
    wrong = conflicts_in(path for own in paths.values() for path in own)
    for row, own in paths.items():
        mixed = any(path in wrong for path in own)
        yield Result(row, "broken", "", nan) if mixed else _result(row, own, objective)


def _result(point: str, paths: list[Path], objective: Objective) -> Result:
    try:
        runs = [read_run(path) for path in paths if path.exists()]
        rounds = "+".join(str(ending(run).t) for run in runs)
    except UsageError:
        return Result(point, "broken", "", nan)
    unfinished = [state for state in map(state_of, runs) if state != "done"]
    state = (unfinished or ["done" if len(runs) == len(paths) else "waiting"])[0]
    return Result(point, state, rounds, fmean(map(objective.of, paths)) if state == "done" else nan)


def best_of(trials: list[Result], objective: Objective) -> Result | None:
    """The best of the finished trials; None if there are none."""
    finished = [result for result in trials if isfinite(result.value)]
    return max(finished, key=lambda result: objective.sign * result.value, default=None)


def write_best(best: Result, sheet: Sheet, jobs: list[Job], folder: Path) -> Path:
    """Write a settings file of the best trial with its first seed, for `wima run`."""
    run = next(cell.run for cell in sheet.cells if cell.row == best.point)
    settings = next(job.settings for job in jobs if job.name == run)
    path = folder / BEST
    replace_text(path, f"# {printable(sheet.command)}: {best.point}\n{settings.to_toml()}")
    return path


class Range(NamedTuple):
    """The values of a setting; integers if both ends are."""

    key: str
    low: float
    high: float
    log: bool

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: float) -> float:
        """The value rounded to a few digits, within the range."""
        short = value if self.is_whole else float(f"{value:.{DIGITS}g}")
        return min(max(short, self.low), self.high)


def parse_space(texts: list[str]) -> list[Range]:
    """Each string is `key=low..high` or `key=low..high:log`."""
    ranges = []
    for text in texts:
        expected = f"Expected --space key=low..high or key=low..high:log, got {text!r}"
        match = SPACE.fullmatch(text)
        if match is None:
            raise UsageError(f"{expected}.")
        low, high = (parse_override(f"end={match[end]}")[1] for end in ("low", "high"))
        check(is_number(low) and is_number(high), f"{expected}: its ends must be numbers.")
        check(low < high, f"{expected}: {low} is not less than {high}.")
        log = match["log"] is not None
        check(low > 0 or not log, f"{expected}: on a log scale, both ends must be positive.")
        ranges.append(Range(match["key"], low, high, log))
    keys = [r.key for r in ranges]
    check(len(set(keys)) == len(keys), f"Expected one --space per key, got {', '.join(keys)}.")
    return ranges


class Search(NamedTuple):
    """What is tuned with `--space`."""

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
    search: Search, folder: Path, trials: int, objective: Objective
) -> tuple[Sheet, list[Job]]:
    """Run trials until there are `trials`; returns all trials in the folder."""
    from optuna import create_study, logging
    from optuna.pruners import MedianPruner

    logging.set_verbosity(logging.WARNING)
    study = create_study(direction="maximize" if objective.sign > 0 else "minimize")
    points = _earlier_points(search, folder)
    for number in range(max(trials, len(points))):
        if number == len(points):
            point = _propose(search, study, points)
            if point is None:
                echo("The ranges contain no untried values.")
                break
            points.append(point)
        point = points[number]
        write_sheet(search.expand(points)[0], folder)
        sheet, jobs = search.expand([point])
        (result,) = results(sheet, folder, objective)
        if result.state not in OVER:
            echo(f"Trial {number + 1}: {result.point}")
            study.pruner = MedianPruner(n_warmup_steps=jobs[0].settings.rounds // WARM_UP)
            study.enqueue_trial(point)
            problem = _run(jobs, folder, study.ask(_distributions(search)), objective)
            (result,) = results(sheet, folder, objective)
            _report(problem, result, number)
        study.add_trial(_frozen(search, point, result, _curve(folder / jobs[0].name, objective)))
    return search.expand(points)


def _earlier_points(search: Search, folder: Path) -> list[Point]:
    """The points of earlier trials in the folder."""
    path = folder / f"{NAME}{SUFFIX}"
    rows = read_sheet(path).rows if path.exists() else []
    points = [dict(parse_override(text) for text in row.split(", ")) for row in rows]
    for point in points:
        same = list(point) == [r.key for r in search.ranges] and all(map(is_number, point.values()))
        check(
            same and all(r.low <= point[r.key] <= r.high for r in search.ranges),
            f"{folder} contains trials outside of these ranges, such as {point}; widen the ranges "
            "or choose another --out.",
        )
    return points


def _distributions(search: Search) -> dict[str, BaseDistribution]:
    from optuna.distributions import FloatDistribution, IntDistribution

    return {
        r.key: IntDistribution(int(r.low), int(r.high), log=r.log)
        if r.is_whole
        else FloatDistribution(r.low, r.high, log=r.log)
        for r in search.ranges
    }


def _propose(search: Search, study: Study, tried: list[Point]) -> Point | None:
    """The next point that was not tried, from randomness with an address; None if none is found."""
    from optuna.samplers import TPESampler

    for attempt in range(ATTEMPTS):
        seed = int(rng("tune", search.seeds[0], len(tried), attempt).integers(2**32))
        study.sampler = TPESampler(seed=seed)
        values = study.ask(_distributions(search)).params
        point = {r.key: r.rounded(values[r.key]) for r in search.ranges}
        if point not in tried:
            return point
    return None


def _frozen(
    search: Search, point: Point, result: Result, curve: Mapping[int, float]
) -> FrozenTrial:
    """A finished trial for the study.  curve: the metric by round, to prune other trials against.

    A diverged trial counts as pruned before its first evaluation, the worst result.
    """
    from optuna import create_trial
    from optuna.trial import TrialState

    done = result.state == "done" and isfinite(result.value)
    pruned = result.state in ("pruned", "diverged")
    return create_trial(
        state=TrialState.COMPLETE if done else TrialState.PRUNED if pruned else TrialState.FAIL,
        value=result.value if done else None,
        params=point,
        distributions=_distributions(search),
        intermediate_values={} if result.state == "diverged" else dict(curve),
    )


def _run(jobs: list[Job], folder: Path, trial: Trial, objective: Objective) -> str:
    """Execute the unfinished runs of a trial; returns the reason if it failed."""
    for number, job in enumerate(jobs):
        path = folder / job.name
        end, message = end_of(path), ""
        if end not in OVER:
            # Prune by the first seed, which all trials share.
            display: MakeDisplay = (
                ProgressDisplay if number else partial(Pruning, trial, objective, path)
            )
            end, message = run_or_resume(path, job.settings.to_toml(), display)
        if end == "interrupted":
            raise Interrupted(f"{message}\nThe same command continues the search.")
        if end != "done":
            return message if end in ("failed", ELSEWHERE) else ""
    return ""


class Pruning(ProgressDisplay):
    """Shows the progress of a run, and prunes it if the median of earlier trials was better."""

    def __init__(
        self, trial: Trial, objective: Objective, path: Path, rounds: int, done: int
    ) -> None:
        super().__init__(rounds, done)
        self._trial, self._objective = trial, objective
        for t, value in _curve(path, objective).items():
            trial.report(value, t)

    def update(self, record: Record) -> None:
        super().update(record)
        model, metric, _ = self._objective
        metrics = record.metrics.get(model)
        if metrics is None or record.t == self.rounds:
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
