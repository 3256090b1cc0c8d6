"""A run's records, as lines in files and as curves.

`records.jsonl` has a line per round.  At every checkpoint, new lines are also appended to a copy
among the checkpoints, so that no rounds are lost if one file is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from wima.core.errors import is_count, is_number
from wima.storage.files import cannot_write, complete_lines, make_folder, written

if TYPE_CHECKING:
    from wima.simulation.simulate import Record


KEYS = ("clients", "calibration", "finetuned")  # of a record; each has an entry per model
RECORDS, TIMES = "records.jsonl", "times.jsonl"
NEEDED = ("t", "cohort", "lr", "metrics")  # in every line; the other fields only if not empty
Values: TypeAlias = tuple["array[int]", "array[float]"]  # rounds, and a value for each
Counts: TypeAlias = tuple["array[int]", "array[int]"]  # rounds, and a count for each


def as_line(record: Record) -> dict[str, Any]:
    """A record as JSON, which has no NaN or infinity; its duration goes into another file."""
    fields = {name: value for name, value in record._asdict().items() if name != "seconds"}
    kept = [*NEEDED, *(name for name in fields if fields[name] and name not in NEEDED)]
    return {
        name: _mapped(fields[name], lambda x: x if x is None or isfinite(x) else None)
        for name in kept
    }


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Nested mappings and lists with `change` applied to every value."""
    if isinstance(tree, Mapping):
        return {name: _mapped(branch, change) for name, branch in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(branch, change) for branch in tree]
    return change(tree)


def from_line(line: dict[str, Any], seconds: float = nan) -> Record:
    """The inverse of `as_line`."""
    from wima.simulation.simulate import Record  # imported here: it imports torch

    fields = {
        name: _mapped(line[name], lambda x: nan if x is None else x)
        for name in Record._fields
        if name in line
    }
    for name in {"dropped", "excluded"} & fields.keys():
        fields[name] = tuple(fields[name])
    return Record(**{"cohort": [], "lr": nan, "seconds": seconds, **fields})


def checked(line: Any) -> dict[str, Any]:
    """A line of records.jsonl; raises `ValueError` if it is malformed."""
    good = is_count(line["t"])
    for metrics in line["metrics"].values():
        for value in metrics.values():
            good = good and (type(value) is float or value is None or is_number(value))
    for count in line.get("windows", {}).values():
        good = good and is_count(count) and count <= line["t"]
    if not good:
        raise ValueError(f"invalid record {line!r:.80}")
    return line  # type: ignore[no-any-return]


class Row(NamedTuple):
    """A model's metric over the last rounds of a run."""

    model: str
    mean: float
    deviation: float  # over rounds
    evaluations: int
    last: int  # rounds


class Curves(NamedTuple):
    """What records contain, by round, in a hundredth of their memory."""

    metrics: dict[str, dict[str, Values]]  # model -> metric
    windows: dict[str, Counts]  # model -> how many models it averaged
    newest: dict[str, tuple[int, dict[str, Any]]]  # kind of entry -> its last round, its entry then
    sent: Values  # bytes to and from clients up to each round, if the first record has bytes

    @classmethod
    def of(cls, records: Iterable[dict[str, Any]]) -> Self:
        curves = cls({}, {}, {}, (array("q"), array("d")))
        rounds, sent = curves.sent
        for number, record in enumerate(records):
            t = record["t"]
            for model, metrics in record["metrics"].items():
                own = curves.metrics.setdefault(model, {})
                for metric, value in metrics.items():
                    _append(own, metric, "d", t, nan if value is None else value)
            for model, count in record.get("windows", {}).items():
                _append(curves.windows, model, "q", t, count)
            kinds = (*KEYS, "privacy")
            curves.newest.update({key: (t, record[key]) for key in kinds if record.get(key)})
            # A record has the bytes since the last one that had any: those of its round, unless
            # records were reduced to fewer rounds (see examples/results/reduce.py).
            if sent or ("bytes" in record and number == 0):
                sent.append(sum(record.get("bytes", {}).values()) + (sent[-1] if sent else 0))
                rounds.append(t)
        return curves

    @property
    def leading(self) -> str:
        """Accuracy, or the first metric if there is none; empty if nothing was evaluated."""
        known = next(iter(self.metrics.values()), {})
        return "accuracy" if "accuracy" in known else next(iter(known), "")

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds in which a model's metric was evaluated, and its values."""
        curves = self.metrics.get(model)
        if curves is None:
            return [], []
        rounds, values = curves[metric]
        if any(len(values) < len(other) for _, other in curves.values()):
            raise KeyError(metric)
        return list(rounds), list(values)

    def rows(self, last: int, metric: str = "accuracy") -> list[Row]:
        """Mean and standard deviation of each model's metric; for curves of the last rounds."""
        rows = []
        for model, metrics in self.metrics.items():
            values = metrics[metric][1]
            mean = fmean(values)
            deviation = sqrt(fmean((value - mean) ** 2 for value in values))
            rows.append(Row(model, mean, deviation, evaluations=len(values), last=last))
        return rows


def _append(curves: dict[str, Any], name: str, code: str, t: int, value: float) -> None:
    if name not in curves:
        curves[name] = array("q"), array(code)
    rounds, values = curves[name]
    rounds.append(t)
    values.append(value)


def lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a file; none if it does not exist."""
    return complete_lines(path) if path.exists() else iter(())


def sums(path: Path, counts: Collection[int]) -> dict[int, str]:
    """n -> the checksum of the first n lines of a file, for each n that it has."""
    found, total = {}, hashlib.sha256()
    for number, line in enumerate(lines(path), 1):
        total.update(line)
        if number in counts:
            found[number] = total.hexdigest()
    return found


def keep(source: Path, count: int, target: Path) -> None:
    """Write the first `count` lines of a file to the target."""
    with written(target) as draft, draft.open("wb") as file:
        file.writelines(islice(lines(source), count))


class RecordFiles:
    """Appends rounds to a run's existing files.  copy: a second file for records."""

    def __init__(self, folder: Path, copy: Path | None) -> None:
        self._files = [(folder / name).open("ab") for name in (RECORDS, TIMES)]
        self._sum, self._copy = hashlib.sha256(), copy
        self._new: list[bytes] = []  # records that are not in the copy yet
        self._copied = 0  # bytes
        for line in lines(folder / RECORDS):
            self._sum.update(line)
            self._copied += len(line)

    def append(self, record: object, time: object) -> None:
        """Append a round; its time goes to another file, since it is not reproducible."""
        new = [(json.dumps(line, allow_nan=False) + "\n").encode() for line in (record, time)]
        for file, line in zip(self._files, new, strict=True):
            try:
                file.write(line)
                file.flush()
            except OSError as error:
                raise cannot_write(Path(file.name), error) from error
        self._sum.update(new[0])
        if self._copy is not None:
            self._new.append(new[0])

    def save(self) -> str:
        """Sync the records to disk; returns their checksum."""
        try:
            for file in self._files:
                os.fsync(file.fileno())
            if self._copy is not None:
                make_folder(self._copy.parent)
                with self._copy.open("ab") as copy:
                    copy.truncate(self._copied)  # a failed attempt may have left data
                    copy.writelines(self._new)
                    copy.flush()
                    os.fsync(copy.fileno())
                    self._copied, self._new = copy.tell(), []
        except OSError as error:
            raise cannot_write(Path(self._files[0].name), error) from error
        return self._sum.hexdigest()

    def close(self) -> None:
        for file in self._files:
            file.close()
