"""A run's folder: everything about the run, written as it proceeds, readable at any time.

settings.toml      the resolved settings; `wima run settings.toml` repeats the run
environment.json   versions, machine, command
records.jsonl      one line per round; the same bytes if the run is repeated or resumed
times.jsonl        how long each round took
status.json        running, done, interrupted, pruned, diverged or failed; rounds done; checksums
checkpoints/       what `wima resume` starts from, including a copy of the records
models/*.safetensors   the final models, by name
snapshots/*.safetensors   sums of models, for windows that are chosen later
lock               held by the process that executes the run
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from functools import cached_property
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from wima.core.checks import is_count, is_number
from wima.core.errors import RunError, UsageError, check
from wima.core.statistics import last_rounds
from wima.runs.environment import environment
from wima.runs.own_code import IN_PYTHON, OWN, label
from wima.runs.record import (
    RECORDS,
    TIMES,
    Counts,
    Curves,
    RecordFiles,
    as_line,
    checked,
    keep,
    lines,
)
from wima.runs.settings import Settings, make_settings, read_table
from wima.storage.files import (
    cannot_write,
    digest,
    drafts_of,
    remove_drafts,
    replace_text,
    written,
)
from wima.storage.lock import Lock, is_running
from wima.storage.reading import check_file, last_lines, read_text

if TYPE_CHECKING:
    from torch import Tensor

    from wima.core.vector import Layout, Vector
    from wima.simulation.simulate import Record


STATES = ("running", "done", "interrupted", "pruned", "diverged", "failed")
FOLDER, SNAPSHOTS = "checkpoints", "snapshots"  # in the run folder
COPY = f"{FOLDER}/{RECORDS}"
MALFORMED = OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError


class RunFolder:
    """Writes one run.  Use `create` or `reopen`; holds the run's lock until it is closed."""

    def __init__(self, path: Path, settings: Settings, lock: Lock, done: int = 0) -> None:
        self.path, self.done, self.state, self._lock = path, done, "running", lock
        self._settings, self._sums = settings, dict[str, str]()
        kept = settings.checkpoint_every or settings.checkpoint_minutes
        self.records = RecordFiles(path, path / COPY if kept else None)

    @classmethod
    def create(cls, path: Path, settings: Settings, facts: dict[str, Any]) -> RunFolder:
        """Create a new folder, which must not exist."""
        check_free(path)
        for draft in drafts_of(path):
            if (draft / "lock").exists() and not is_running(draft):  # its process was killed
                shutil.rmtree(draft, ignore_errors=True)
        with written(path, folder=True, kind=UsageError) as draft:
            lock = Lock(draft)
            (draft / "settings.toml").write_text(settings.to_toml(), encoding="utf-8")
            _write_json(draft / "environment.json", {**environment(), **facts})
            _write_json(draft / "status.json", _status(settings, "running", 0))
            for name in (RECORDS, TIMES):
                (draft / name).touch()
        return cls(path, settings, lock)

    @classmethod
    def reopen(
        cls, path: Path, settings: Settings, lock: Lock, done: int, records: Path
    ) -> RunFolder:
        """Resume after `done` rounds, whose records are in a file; later rounds are repeated."""
        try:
            remove_drafts(path)
            for file in (path / RECORDS, path / COPY):
                if file.parent.is_dir():
                    keep(records, done, file)
            keep(path / TIMES, done, path / TIMES)
            shutil.rmtree(path / "models", ignore_errors=True)
            _write_json(path / "status.json", _status(settings, "running", done))
            return cls(path, settings, lock, done)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, record: Record) -> None:
        """Add a round."""
        self.records.append(as_line(record), {"t": record.t, "seconds": round(record.seconds, 6)})
        self.done = record.t

    def save_models(self, vectors: dict[str, Vector], layout: Layout | None) -> None:
        """Write the final models, each with its tensors by name: all of them or none."""
        from safetensors.torch import save_file

        self._sums = {RECORDS: self.records.save()}
        with written(self.path / "models", folder=True) as draft:
            for name, w in vectors.items():
                file = f"{name}.safetensors"
                save_file(by_name(w, layout), draft / file)
                self._sums[f"models/{file}"] = digest(draft / file)

    def close(self, state: str, reason: str = "") -> None:
        """Write how the run ended, if possible, and release the lock."""
        self.state = state
        status = _status(self._settings, state, self.done, reason)
        with contextlib.suppress(OSError):
            self.records.close()
        with contextlib.suppress(RunError):
            sums = {"sums": self._sums} if state == "done" else {}
            _write_json(self.path / "status.json", {**status, **sums})
        self._lock.release()


def by_name(w: Vector, layout: Layout | None) -> dict[str, Tensor]:
    """The tensors in a vector, each with its own memory, as safetensors requires."""
    tensors = layout.unflatten(w) if layout else {"w": w}
    return {name: tensor.clone() for name, tensor in tensors.items()}


class Run:
    """A run read from its folder.  Records are read on demand: there may be a million."""

    def __init__(
        self, path: Path, settings: Settings, status: dict[str, Any], environment: dict[str, Any]
    ) -> None:
        self.path, self.settings = path, settings
        self.status, self.environment = status, environment

    @property
    def t(self) -> int:
        """The number of completed rounds: that of the last record."""
        try:
            return int(json.loads(next(last_lines(self.path / RECORDS), b'{"t": 0}'))["t"])
        except MALFORMED as error:
            raise self._damaged(f"its last line: {_reason(error)}") from None

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """A dict per round."""
        return list(self._parsed())

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds in which a model's metric was evaluated, and its values."""
        return self.curves.curve(model, metric)

    @property
    def models(self) -> list[str]:
        """The names of the models that were evaluated, "plain" first."""
        return list(self.curves.metrics)

    @property
    def windows(self) -> dict[str, Counts]:
        """Model -> rounds, and the size of its window then, for models whose window varies."""
        return self.curves.windows

    @cached_property
    def curves(self) -> Curves:
        """The contents of the records by round."""
        return Curves.of(self._parsed())

    def _parsed(self) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines(self.path / RECORDS), 1):
            try:
                yield checked(json.loads(line))
            except MALFORMED as error:
                raise self._damaged(f"line {number}: {_reason(error)}") from None

    def _damaged(self, where: str) -> UsageError:
        return UsageError(
            f"{self.path / RECORDS} is damaged in {where}. `wima resume {self.path}` repairs it."
        )


def read_run(path: Path) -> Run:
    """Read the folder of a run that has ended or is running."""
    for name in ("settings.toml", "environment.json", RECORDS, "status.json"):
        check((path / name).is_file(), f"{path} is not a run folder: it contains no {name}.")
    settings = make_settings(read_table(str(path / "settings.toml")))
    try:
        status, around = (
            json.loads(read_text(path / f"{name}.json")) for name in ("status", "environment")
        )
        check(status["state"] in STATES and is_count(status["done"], 0), "status.json")
        check(isinstance(around, dict), "environment.json")
    except MALFORMED as error:
        raise UsageError(f"The run folder {path} is damaged: {_reason(error)}") from None
    return Run(path, settings, status, around)


def is_intact(run: Run) -> bool:
    """Whether the records and models of a finished run are unchanged."""
    try:
        sums = dict(run.status.get("sums", {}))
        for name in sums:
            check_file(run.path / name)
        return all(digest(run.path / name) == expected for name, expected in sums.items())
    except MALFORMED:
        return False


def seconds_of(path: Path) -> dict[int, float]:
    """Round -> seconds, from times.jsonl in a run folder."""
    file = path / TIMES
    try:
        times = json.loads(b"[" + b",".join(lines(file)) + b"]")  # three times as fast as by line
        if not all(is_number(line["seconds"]) for line in times):
            raise ValueError("seconds must be numbers")
        return {line["t"]: float(line["seconds"]) for line in times}
    except MALFORMED as error:
        raise UsageError(f"{file} is damaged: {_reason(error)}.") from None


def run_name(settings: Settings, *, what: str = "", seed: bool = False) -> str:
    """The name of a run's folder: `what`, or data and algorithm; optionally its seed; its hash."""
    what = what or f"{label(settings.data.name)}-{label(settings.algorithm.name)}"
    return f"{what}-s{settings.seed}-{settings.run_id}" if seed else f"{what}-{settings.run_id}"


def state_of(run: Run) -> str:
    """The state in the folder; \"interrupted\" if the process was killed."""
    state = str(run.status["state"])
    return "interrupted" if state == "running" and not is_running(run.path) else state


def check_free(path: Path) -> None:
    """Raise `UsageError` if the path exists: a run never overwrites anything."""
    try:
        taken = os.path.lexists(path) or path.exists()
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
    if taken:
        raise UsageError(
            f"The output folder {path} already exists; {_advice(path)}choose another with --out, "
            "or remove it."
        )


def check_no_links(path: Path) -> None:
    """Refuse symbolic links among a run's files: writing through them would change other files."""
    inside = [path, path / FOLDER, path / "models", path / SNAPSHOTS]
    for file in (file for folder in inside if folder.is_dir() for file in folder.iterdir()):
        check(
            not file.is_symlink(),
            f"{file} is a symbolic link, but a run writes only to its own folder; replace the link "
            "with a copy of its target.",
        )


def _advice(path: Path) -> str:
    """How to resume an unfinished run in the folder."""
    try:
        status = json.loads(read_text(path / "status.json"))
        if status["state"] == "done":
            return ""
        return (
            f"it contains a run with {status['done']} of {status['rounds']} rounds done: "
            f"{status.get('resume', f'`wima resume {path}`')} resumes it. Or "
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def free_path(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    candidate, number = path, 2
    while os.path.lexists(candidate):
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def _status(settings: Settings, state: str, done: int, reason: str = "") -> dict[str, Any]:
    status = {"state": state, "done": done, "rounds": settings.rounds, "reason": reason}
    where = {"resume": IN_PYTHON} if settings.data.name == OWN else {}
    return {**status, "settings": settings.run_id, **where}


def _write_json(path: Path, content: Any) -> None:
    replace_text(path, json.dumps(content, indent=2) + "\n")


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
