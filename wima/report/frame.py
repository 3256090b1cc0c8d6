"""The runs and sheets of a report: facts of each run, and one tidy frame of all their values.

Whatever cannot be used is listed with the reason.  This module alone knows how runs are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from wima.core.errors import UsageError
from wima.core.statistics import QUANTILES
from wima.experiments.sheet import SUFFIX, Sheet, read_sheet
from wima.report.statistics import Curve
from wima.runs.run import MALFORMED, Run, read_run, seconds_of, state_of
from wima.runs.settings import Settings

MARKER = ".wima-report"  # in the folder of a report
COMPARED = ".wima-compare"  # in the folder of a comparison
SIGNS = ("settings.toml", "records.jsonl", "status.json")  # a folder with any of them is a run
CALIBRATION = ("ece", "loss")  # metrics
SCRIPT = "examples/results/choosing_w.py"  # makes the table of a sheet of the kind `regret`
LEVELS = [f"{100 * share:g}" for share in QUANTILES]  # names of the recorded quantiles


class Source(NamedTuple):
    """A run without its values, which are in the frame."""

    number: int  # in the frame
    path: Path  # as given or found
    settings: Settings
    state: str
    reason: str  # why it ended, if it failed
    done: int  # rounds
    environment: Mapping[str, Any]
    seconds: float | None  # of all its rounds
    models: list[str]  # that were evaluated, "plain" first
    leading: str  # the metric of the per-client results
    bins: dict[str, NDArray[np.float64]]  # by model: examples, confidence, accuracy of each

    @property
    def progress(self) -> str:
        return f"{self.done}/{self.settings.rounds} rounds"


class Omitted(NamedTuple):
    """A folder or file that is not in the report."""

    path: str
    reason: str


Piece = tuple[str, str, Sequence[int], Sequence[float]]  # model, metric, rounds, values


@dataclass(frozen=True)
class Data:
    """The input of a report.  Keys are resolved paths, so nothing is included twice."""

    runs: dict[Path, Source]
    sheets: dict[Path, Sheet]
    omitted: list[Omitted]
    pieces: list[tuple[Source, Piece]]

    @cached_property
    def frame(self) -> Any:
        """A row per value: run, seed, method, model, metric, t, value; NaN if it is not finite.

        Beside the metric of the report and those of calibration, there are `window` (the number of
        models in an average that chooses it), `bytes` (cumulative, for no model), `epsilon` (the
        same; NaN if infinite), and the newest results for clients: `clients.mean`, `before.worst`,
        `after.25` (a quantile), ...
        """
        names = {"run": [s.number for s, _ in self.pieces]}
        names["seed"] = [s.settings.seed for s, _ in self.pieces]
        texts = {"method": [str(s.settings.algorithm) for s, _ in self.pieces]}
        texts |= {"model": [p[0] for _, p in self.pieces], "metric": [p[1] for _, p in self.pieces]}
        lengths = [len(values) for _, (*_, values) in self.pieces]
        columns = {name: np.repeat(values, lengths) for name, values in names.items()}
        columns |= {n: pd.Categorical(v).repeat(lengths) for n, v in texts.items()}
        rounds = [np.array(p[2], np.int64) for _, p in self.pieces]
        values = [np.array(p[3], np.float64) for _, p in self.pieces]
        columns["t"] = np.concatenate([np.empty(0, np.int64), *rounds])
        value = np.concatenate([np.empty(0), *values])
        columns["value"] = np.where(np.isfinite(value), value, nan)
        return pd.DataFrame(columns)

    @cached_property
    def curves(self) -> dict[tuple[int, str, str], Curve]:
        """(run, model, metric) -> its rounds and values."""
        groups = self.frame.groupby(["run", "model", "metric"], sort=False, observed=True)
        return {key: Curve(own.t.to_numpy(), own.value.to_numpy()) for key, own in groups}

    def numbers(self, run: Source, model: str, metrics: Sequence[str]) -> list[float]:
        """The last value of each metric that the run has for this model."""
        found = (self.curves.get((run.number, model, metric)) for metric in metrics)
        return [float(curve.values[-1]) for curve in found if curve is not None]


def gather(paths: Sequence[Path], metric: str) -> Data:
    """Read every run and sheet at these paths and below them."""
    data = Data({}, {}, [], [])
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            data.omitted.append(Omitted(str(path), "it does not exist"))
        elif not path.is_dir():
            names: dict[str, None] = {}
            if sheet := _add_sheet(path, data):
                names = dict.fromkeys(cell.run for cell in sheet.cells)
            for folder in (path.parent / name for name in names):
                if folder.is_dir():
                    _add_run(folder, metric, data)
        elif not _walk(path, metric, data, seen):
            data.omitted.append(Omitted(str(path), "not a run folder, and it contains none"))
    return data


def _walk(folder: Path, metric: str, data: Data, seen: set[Path]) -> bool:
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
        data.omitted.append(Omitted(str(folder), f"cannot be read: {error.strerror}"))
        return True
    if names.intersection((MARKER, COMPARED)):
        return True  # it was made from runs
    if names.intersection(SIGNS):
        _add_run(folder, metric, data)
        return True
    sheets = [folder / name for name in sorted(names) if name.endswith(SUFFIX)]
    for sheet in sheets:
        _add_sheet(sheet, data)
    used = {child: _walk(child, metric, data, seen) for child in folders}
    if not any(used.values()) and not sheets:
        return False  # the caller lists the folder as omitted
    unused = [child for child, is_used in used.items() if not is_used]
    data.omitted.extend(Omitted(str(child), "not a run folder") for child in unused)
    return True


def _add_sheet(path: Path, data: Data) -> Sheet | None:
    try:
        sheet = read_sheet(path)
    except UsageError as error:
        data.omitted.append(Omitted(str(path), _one_line(error)))
        return None
    if sheet.kind == "regret":
        reason = f"{SCRIPT} makes its table; its runs are reported like runs without a sheet"
        data.omitted.append(Omitted(str(path), reason))
    else:
        data.sheets.setdefault(path.resolve(), sheet)
    return sheet


def _add_run(path: Path, metric: str, data: Data) -> None:
    place = path.resolve()
    if place in data.runs:
        return
    try:
        run = read_run(path)
        source, pieces = _source(run, len(data.runs)), [*_evaluated(run, metric), *_recorded(run)]
        if any(np.any(np.diff(rounds) <= 0) for *_, rounds, _ in pieces):
            raise ValueError("the rounds are not in order")
        data.runs[place] = source
        data.pieces.extend((source, piece) for piece in pieces)
    except (UsageError, OSError) as error:
        data.omitted.append(Omitted(str(path), _one_line(error)))
    except MALFORMED as error:
        data.omitted.append(Omitted(str(path), f"its records are damaged: {_one_line(error)}"))


def _source(run: Run, number: int) -> Source:
    try:
        seconds = sum(seconds_of(run.path).values()) or None
    except UsageError:  # times.jsonl is damaged
        seconds = None
    _, bins = run.curves.newest.get("calibration", (0, {}))
    return Source(
        number=number,
        path=run.path,
        settings=run.settings,
        state=state_of(run),
        reason=str(run.status.get("reason") or ""),
        done=run.t,
        environment=run.environment,
        seconds=seconds,
        models=run.models,
        leading=run.curves.leading,
        bins={model: np.array(own, float).reshape(-1, 3) for model, own in bins.items()},
    )


def _evaluated(run: Run, metric: str) -> Iterator[Piece]:
    """The curves of the metric, and those of calibration if every evaluation has them."""
    try:
        yield from [(model, metric, *run.curve(model, metric)) for model in run.models]
    except KeyError:
        names = ", ".join(run.metrics) or "none"
        raise UsageError(f"not every record has the metric {metric!r}; it has {names}") from None
    with contextlib.suppress(KeyError):
        curves = [(m, name, *run.curve(m, name)) for m in run.models for name in CALIBRATION]
        yield from (piece for piece in curves if piece[1] != metric)


def _recorded(run: Run) -> Iterator[Piece]:
    """What else the records may have."""
    newest, (rounds, sent) = run.curves.newest, run.curves.sent
    for model, counts in run.windows.items():
        yield (model, "window", *counts)
    if sent:
        yield "", "bytes", rounds, sent
    if "privacy" in newest:
        t, budget = newest["privacy"]
        yield "", "epsilon", [t], [_or_nan(budget.get("epsilon"))]
    if "clients" in newest:
        t, models = newest["clients"]
        yield from _statistics("clients", t, models)
    if "finetuned" in newest:
        t, models = newest["finetuned"]
        for stage in ("before", "after"):
            yield from _statistics(stage, t, {m: own[stage] for m, own in models.items()})


def _statistics(kind: str, t: int, models: Mapping[str, Mapping[str, Any]]) -> Iterator[Piece]:
    """What a record says of clients, a number per model and name."""
    for model, summary in models.items():
        numbers = {name: value for name, value in summary.items() if name != "quantiles"}
        numbers |= dict(zip(LEVELS, summary["quantiles"], strict=True))
        yield from ((model, f"{kind}.{name}", [t], [_or_nan(v)]) for name, v in numbers.items())


def _or_nan(value: float | None) -> float:
    return nan if value is None else float(value)


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
