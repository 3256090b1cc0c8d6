"""The runs and sheets of a report: facts and curves of each run.

Whatever cannot be used is listed with the reason.  This module alone knows how runs are read.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wima.core.errors import UsageError
from wima.core.statistics import QUANTILES
from wima.experiments.sheet import SUFFIX, Sheet, read_sheet
from wima.report.statistics import Curve
from wima.runs.identity import conflicts
from wima.runs.run import MALFORMED, Run, read_run, seconds_of, state_of
from wima.runs.settings import Settings

MARKER = ".wima-report"  # in the folder of a report
COMPARED = ".wima-compare"  # in the folder of a comparison
SIGNS = ("settings.toml", "records.jsonl", "status.json")  # a folder with any of them is a run
CALIBRATION = ("ece", "loss")  # metrics
SCRIPT = "examples/results/choosing_w.py"  # makes the table of a sheet of the kind `regret`
LEVELS = [f"{100 * share:g}" for share in QUANTILES]  # names of the recorded quantiles


class Source(NamedTuple):
    """A run.

    Beside the metric of the report and those of calibration, there are curves of `window` (the
    number of models in an average that chooses it), `bytes` (cumulative, for no model), `epsilon`
    (the same; NaN if infinite), and the newest results for clients: `clients.mean`,
    `before.worst`, `after.25` (a quantile), ...
    """

    number: int
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
    curves: dict[tuple[str, str], Curve]  # by model and metric
    identity: Mapping[str, Any]  # see `runs/identity.py`

    @property
    def progress(self) -> str:
        return f"{self.done}/{self.settings.rounds} rounds"

    def numbers(self, model: str, metrics: Sequence[str]) -> list[float]:
        """The last value of each metric that the run has for this model."""
        found = (self.curves.get((model, metric)) for metric in metrics)
        return [float(curve.values[-1]) for curve in found if curve is not None]


class Omitted(NamedTuple):
    """A folder or file that is not in the report."""

    path: str
    reason: str


# Model, metric, rounds, values; None is NaN.
Piece = tuple[str, str, Sequence[int], Sequence[float | None]]


class Data(NamedTuple):
    """The input of a report.  Keys are resolved paths, so nothing is included twice."""

    runs: dict[Path, Source]
    sheets: dict[Path, Sheet]
    omitted: list[Omitted]


def gather(paths: Sequence[Path], metric: str, purpose: str = "") -> Data:
    """Read every run and sheet at these paths and below them.

    purpose: what the runs are for, in the error if there are none; empty: that is no error.
    """
    data = Data({}, {}, [])
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            data.omitted.append(Omitted(str(path), "it does not exist"))
        elif not path.is_dir():
            sheet = _add_sheet(path, data)
            for name in dict.fromkeys(cell.run for cell in sheet.cells) if sheet else ():
                if (path.parent / name).is_dir():
                    _add_run(path.parent / name, metric, data)
        elif not _walk(path, metric, data, seen):
            data.omitted.append(Omitted(str(path), "not a run folder, and it contains none"))
    wrong = conflicts(data.runs.values())
    if wrong and purpose == "compare":
        reasons = "\n".join(f"  {path}: {reason}" for path, reason in wrong.items())
        raise UsageError(f"These runs cannot be compared with the others; omit them.\n{reasons}")
    data.omitted.extend(Omitted(str(path), reason) for path, reason in wrong.items())
    for place in [place for place, run in data.runs.items() if run.path in wrong]:
        del data.runs[place]
    if purpose and not data.runs:
        reasons = "\n".join(f"  {item.path}: {item.reason}" for item in data.omitted[:10])
        raise UsageError(f"There are no runs to {purpose}.\n{reasons}")
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
        data.runs[place] = _source(read_run(path), len(data.runs), metric)
    except (UsageError, OSError) as error:
        data.omitted.append(Omitted(str(path), _one_line(error)))
    except MALFORMED as error:
        data.omitted.append(Omitted(str(path), f"its records are damaged: {_one_line(error)}"))


def _source(run: Run, number: int, metric: str) -> Source:
    curves = {}
    for model, name, rounds, values in (*_evaluated(run, metric), *_recorded(run)):
        if np.any(np.diff(rounds) <= 0):
            raise ValueError("the rounds are not in order")
        if len(rounds):
            numbers = np.array(values, np.float64)
            finite = np.where(np.isfinite(numbers), numbers, nan)
            curves[model, name] = Curve(np.array(rounds, np.int64), finite)
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
        curves=curves,
        identity=run.identity,
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
        yield "", "epsilon", [t], [budget.get("epsilon")]
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
        yield from ((model, f"{kind}.{name}", [t], [value]) for name, value in numbers.items())


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
