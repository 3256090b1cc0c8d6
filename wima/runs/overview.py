"""Overview of runs: their folders and last rounds, without reading all records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from wima.core.errors import UsageError
from wima.core.last import last_rounds
from wima.runs.folder import MALFORMED, Run
from wima.runs.records import RECORDS, Curves, checked
from wima.storage.reading import last_lines


class Ending(NamedTuple):
    """The last rounds of a run, over which its metrics are averaged."""

    t: int  # rounds recorded
    last: int  # number of last rounds
    curves: Curves  # of the last rounds


def ending(run: Run) -> Ending:
    """The last rounds of a run, in any state."""
    file, t, last = run.path / RECORDS, 0, 0
    found: list[dict[str, Any]] = []
    try:
        for line in last_lines(file):
            record = checked(json.loads(line))
            if not found:
                t, last = record["t"], last_rounds(record["t"])
            if record["t"] <= t - last:
                break
            found.append(record)
        return Ending(t, last, Curves.of(reversed(found)))
    except MALFORMED as error:
        raise UsageError(
            f"{file} is damaged near its end: {type(error).__name__}: {error!s:.200}. "
            f"`wima resume {run.path}` repairs it."
        ) from None


class Row(NamedTuple):
    """A model's metric over the last rounds of a run."""

    model: str
    mean: float
    deviation: float  # over rounds
    evaluations: int
    last: int  # rounds


def rows_of(curves: Curves, last: int, metric: str = "accuracy") -> list[Row]:
    """Mean and standard deviation of each model's metric.  curves: of the last rounds."""
    rows = []
    for model, metrics in curves.metrics.items():
        values = metrics[metric][1]
        mean = fmean(values)
        deviation = sqrt(fmean((value - mean) ** 2 for value in values))
        rows.append(Row(model, mean, deviation, len(values), last))
    return rows


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at a path and in its subfolders, sorted."""
    seen = set[Path]()  # links may form cycles
    for text, below, files in os.walk(folder, followlinks=True):
        place = Path(text)
        known, is_run = place.resolve() in seen, "status.json" in files
        seen.add(place.resolve())
        if is_run and not known:
            yield place
        inside = not (known or is_run)
        below[:] = sorted(name for name in below if inside and not name.startswith("."))
