"""Reads the runs and sheets of a report; whatever cannot be used is listed with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wima.core.errors import UsageError
from wima.experiments.sheet import SUFFIX, Sheet, read_sheet
from wima.report.statistics import Curve
from wima.runs.folder import Run, read_run, seconds_of, state_of
from wima.runs.record import Extras
from wima.runs.settings import Settings

MARKER = ".wima-report"  # in the folder of a report
COMPARED = ".wima-compare"  # in the folder of a comparison
CALIBRATION = ("ece", "loss")  # metrics
SIGNS = ("settings.toml", "records.jsonl", "status.json")  # a folder with any of them is a run


class Trace(NamedTuple):
    """What a report needs from a run."""

    path: Path  # as given or found
    settings: Settings
    state: str
    reason: str  # why it ended, if it failed
    done: int  # rounds
    environment: Mapping[str, Any]
    seconds: float | None  # of all its rounds
    curves: dict[str, Curve]  # by model, "plain" first
    windows: dict[str, Curve]  # by model: the number of averaged models, if it varies
    extras: Extras
    leading: str  # the metric of the per-client results
    calibration: dict[str, dict[str, Curve]]  # metric -> model, if its calibration was measured

    @property
    def progress(self) -> str:
        return f"{self.done}/{self.settings.rounds} rounds"


class Omitted(NamedTuple):
    """A folder or file that is not in the report."""

    path: str
    reason: str


class Found(NamedTuple):
    """The input of a report.  Keys are resolved paths, so nothing is included twice."""

    runs: dict[Path, Trace]
    sheets: dict[Path, Sheet]
    omitted: list[Omitted]


def gather(paths: Sequence[Path], metric: str) -> Found:
    """Read every run and sheet at these paths and below them."""
    found = Found({}, {}, [])
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            found.omitted.append(Omitted(str(path), "it does not exist"))
        elif not path.is_dir():
            _add_sheet(path, found)
            for run in _runs_of(path, found):
                _add_run(run, metric, found)
        elif not _walk(path, metric, found, seen):
            found.omitted.append(Omitted(str(path), "not a run folder, and it contains none"))
    return found


def _walk(folder: Path, metric: str, found: Found, seen: set[Path]) -> bool:
    """Read a folder; returns whether it contains runs, sheets, a report or a comparison."""
    place = folder.resolve()
    if place in seen:
        return True
    seen.add(place)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        folders = [Path(e.path) for e in entries if e.is_dir() and not e.name.startswith(".")]
    except OSError as error:
        found.omitted.append(Omitted(str(folder), f"cannot be read: {error.strerror}"))
        return True
    if names.intersection((MARKER, COMPARED)):
        return True  # it was made from runs
    if names.intersection(SIGNS):
        _add_run(folder, metric, found)
        return True
    sheets = [folder / name for name in sorted(names) if name.endswith(SUFFIX)]
    for sheet in sheets:
        _add_sheet(sheet, found)
    used = {child: _walk(child, metric, found, seen) for child in folders}
    if not any(used.values()) and not sheets:
        return False  # the caller lists the folder as omitted
    unused = [child for child, is_used in used.items() if not is_used]
    found.omitted.extend(Omitted(str(child), "not a run folder") for child in unused)
    return True


def _add_sheet(path: Path, found: Found) -> None:
    try:
        found.sheets[path.resolve()] = read_sheet(path)
    except UsageError as error:
        found.omitted.append(Omitted(str(path), _one_line(error)))


def _runs_of(sheet: Path, found: Found) -> Iterator[Path]:
    """The existing folders of the runs that a sheet names."""
    known = found.sheets.get(sheet.resolve())
    names = dict.fromkeys(cell.run for cell in known.cells) if known else {}
    yield from (sheet.parent / name for name in names if (sheet.parent / name).is_dir())


def _add_run(path: Path, metric: str, found: Found) -> None:
    place = path.resolve()
    if place in found.runs:
        return
    try:
        found.runs[place] = _trace(read_run(path), metric)
    except (UsageError, OSError) as error:
        found.omitted.append(Omitted(str(path), _one_line(error)))


def _trace(run: Run, metric: str) -> Trace:
    """The curves and facts of a run; raises if it lacks the metric."""
    try:
        curves = {model: _curve(*run.curve(model, metric)) for model in run.models}
        windows = {model: _curve(*counts) for model, counts in run.windows.items()}
        extras = (run.curves.extras, run.curves.leading, _calibration(run))
    except KeyError:
        names = ", ".join(run.metrics) or "none"
        raise UsageError(f"not every record has the metric {metric!r}; it has {names}") from None
    except UsageError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"its records are damaged: {error}") from None
    reason = str(run.status.get("reason") or "")
    facts = (run.settings, state_of(run), reason, run.t, run.environment, _seconds(run.path))
    return Trace(run.path, *facts, curves, windows, *extras)


def _calibration(run: Run) -> dict[str, dict[str, Curve]]:
    """Its calibration curves, if every evaluation has them."""
    try:
        return {m: {n: _curve(*run.curve(n, m)) for n in run.models} for m in CALIBRATION}
    except KeyError:
        return {}


def _curve(rounds: Sequence[int], values: Sequence[float]) -> Curve:
    curve = Curve(np.array(rounds, np.int64), np.array(values, np.float64))
    if np.any(np.diff(curve.rounds) <= 0):
        raise ValueError("the rounds are not in order")
    curve.values[~np.isfinite(curve.values)] = np.nan
    return curve


def _seconds(path: Path) -> float | None:
    """The total time of all rounds, if it was recorded."""
    try:
        return sum(seconds_of(path).values()) or None
    except UsageError:
        return None


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
