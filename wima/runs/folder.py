"""A run's folder: everything about the run, written as it goes, readable at any moment.

settings.toml      the resolved settings; `wima run settings.toml` repeats the run
environment.json   versions, machine, command
records.jsonl      one line per round; the same bytes whenever the run is repeated or resumed
times.jsonl        how long each round took
status.json        running, done, interrupted, pruned, diverged or failed; rounds done; checksums
checkpoints/       what `wima resume` goes on from; among it, a copy of the records
models/*.safetensors   the final models, by name
snapshots/*.safetensors   sums of models, for windows that are chosen later
lock               held by the process that works on the run
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wima.core.checks import is_count, is_number
from wima.core.errors import RunError, UsageError, check
from wima.runs.environment import environment
from wima.runs.names import IN_PYTHON, OWN, label
from wima.runs.records import (
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
from wima.storage.reading import check_file, read_text

if TYPE_CHECKING:  # they bring torch, which readers do not need
    from torch import Tensor

    from wima.core.vector import Layout, Vector
    from wima.simulation.simulation import Record

STATES = ("running", "done", "interrupted", "pruned", "diverged", "failed")
FOLDER, SNAPSHOTS = "checkpoints", "snapshots"  # in the run folder
COPY = f"{FOLDER}/{RECORDS}"
MALFORMED = OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError


class RunFolder:
    """Writes one run.  Made by `create` or `reopen`; holds the run's lock until it is closed."""

    def __init__(self, path: Path, settings: Settings, lock: Lock, done: int = 0) -> None:
        self.path, self.done, self.state, self._lock = path, done, "running", lock
        self._settings, self._sums = settings, dict[str, str]()
        kept = settings.checkpoint_every or settings.checkpoint_minutes
        self.records = RecordFiles(path, path / COPY if kept else None)

    @classmethod
    def create(cls, path: Path, settings: Settings, facts: dict[str, Any]) -> RunFolder:
        """A new folder, which must not exist yet."""
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
        """Resume after so many rounds, whose records are in a file; later ones are run again."""
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
        """The final models, each with its tensors by name; all of them or none."""
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
    """A vector's tensors, each with memory of its own, as safetensors wants it."""
    tensors = layout.unflatten(w) if layout else {"w": w}
    return {name: tensor.clone() for name, tensor in tensors.items()}


class Run:
    """A run folder, read.  Records are read when they are asked for: there may be a million."""

    def __init__(
        self, path: Path, settings: Settings, status: dict[str, Any], environment: dict[str, Any]
    ) -> None:
        self.path, self.settings = path, settings
        self.status, self.environment = status, environment

    @property
    def t(self) -> int:
        """How many rounds are recorded."""
        return sum(1 for _ in lines(self.path / RECORDS))

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """A dict per round."""
        return list(self._parsed())

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a model's metric, where it was evaluated."""
        return self.curves.curve(model, metric)

    @property
    def models(self) -> list[str]:
        """The names of the models that were evaluated, "plain" first."""
        return list(self.curves.metrics)

    @property
    def windows(self) -> dict[str, Counts]:
        """Model -> rounds, and how many models its average was of; those whose window varies."""
        return self.curves.windows

    @cached_property
    def curves(self) -> Curves:
        """What the records say, over the rounds."""
        return Curves.of(self._parsed())

    def _parsed(self) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines(self.path / RECORDS), 1):
            try:
                yield checked(json.loads(line))
            except MALFORMED as error:
                raise UsageError(
                    f"{self.path / RECORDS} is damaged in line {number}: {_reason(error)}. "
                    f"`wima resume {self.path}` repairs it."
                ) from None


def read_run(path: Path) -> Run:
    """Read the folder of a run that has ended or is under way."""
    for name in ("settings.toml", "environment.json", RECORDS, "status.json"):
        check((path / name).is_file(), f"{path} is not a run folder: no {name} in it.")
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
    """Whether a finished run has the records and models that it ended with."""
    try:
        sums = dict(run.status.get("sums", {}))
        for name in sums:
            check_file(run.path / name)
        return all(digest(run.path / name) == expected for name, expected in sums.items())
    except MALFORMED:
        return False


def seconds_of(path: Path) -> dict[int, float]:
    """Round -> how long it took, as far as times.jsonl in a run folder says."""
    file = path / TIMES
    try:
        times = json.loads(b"[" + b",".join(lines(file)) + b"]")  # at once: a third of the time
        if not all(is_number(line["seconds"]) for line in times):
            raise ValueError("seconds must be numbers")
        return {line["t"]: float(line["seconds"]) for line in times}
    except MALFORMED as error:
        raise UsageError(f"{file} is damaged: {_reason(error)}.") from None


def run_name(settings: Settings, *, what: str = "", seed: bool = False) -> str:
    """The name of a run's folder: `what`, or data and algorithm; its seed if asked; its hash."""
    what = what or f"{label(settings.data.name)}-{label(settings.algorithm.name)}"
    return f"{what}-s{settings.seed}-{settings.run_id}" if seed else f"{what}-{settings.run_id}"


def state_of(run: Run) -> str:
    """The state in the folder; \"interrupted\" if its process is gone."""
    state = str(run.status["state"])
    return "interrupted" if state == "running" and not is_running(run.path) else state


def check_free(path: Path) -> None:
    """A run never writes over anything."""
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
    """Refuse symbolic links among a run's files: what is written through them lands elsewhere."""
    inside = [path, path / FOLDER, path / "models", path / SNAPSHOTS]
    for file in (file for folder in inside if folder.is_dir() for file in folder.iterdir()):
        check(
            not file.is_symlink(),
            f"{file} is a symbolic link, and a run writes only to its own folder; put a copy of "
            "what it points to in its place.",
        )


def _advice(path: Path) -> str:
    """What can be done with a run that did not finish."""
    try:
        status = json.loads(read_text(path / "status.json"))
        if status["state"] == "done":
            return ""
        return (
            f"it holds a run of which {status['done']} of {status['rounds']} rounds are done: "
            f"{status.get('resume', f'`wima resume {path}`')} goes on with it. Or "
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def free_path(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that is free."""
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
