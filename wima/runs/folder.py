"""A run's folder: everything about the run, written as it goes, readable at any moment.

settings.toml      the resolved settings; `wima run settings.toml` repeats the run
environment.json   versions, machine, command
records.jsonl      one line per round; the same bytes whenever the run is repeated or resumed
times.jsonl        how long each round took
status.json        running, done, interrupted, diverged or failed; rounds done
checkpoints/       what `wima resume` goes on from
models/*.safetensors   the final models, by name
lock               held by the process that works on the run
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file

from wima.core.checks import is_count
from wima.core.errors import RunError, UsageError, check
from wima.core.machine import processor
from wima.core.vector import Layout, Vector
from wima.core.version import __version__
from wima.runs.settings import Settings, make_settings, read_table
from wima.simulation.simulation import Record
from wima.storage.files import cannot_write, remove_drafts, replace_text, written
from wima.storage.lock import Lock, is_running

STATES = ("running", "done", "interrupted", "diverged", "failed")


class RunFolder:
    """Writes one run.  Made by `create` or `reopen`; holds the run's lock until it is closed."""

    def __init__(self, path: Path, rounds: int, lock: Lock, done: int = 0) -> None:
        self.path, self.done, self._rounds, self._lock = path, done, rounds, lock
        self.state = "running"
        self._hash = hashlib.sha256((path / "records.jsonl").read_bytes())
        self._records = (path / "records.jsonl").open("a", encoding="utf-8")
        self._times = (path / "times.jsonl").open("a", encoding="utf-8")

    @classmethod
    def create(cls, path: Path, settings: Settings, facts: dict[str, Any]) -> RunFolder:
        """A new folder, which must not exist yet."""
        check_free(path)
        with written(path, folder=True, kind=UsageError) as draft:
            (draft / "settings.toml").write_text(settings.to_toml(), encoding="utf-8")
            _write_json(draft / "environment.json", {**environment(), **facts})
            _write_json(draft / "status.json", _status("running", 0, settings.rounds))
            for name in ("records.jsonl", "times.jsonl"):
                (draft / name).touch()
            lock = Lock(draft)
        return cls(path, settings.rounds, lock)

    @classmethod
    def reopen(cls, path: Path, settings: Settings, lock: Lock, done: int) -> RunFolder:
        """Resume after so many rounds; later ones are run again."""
        try:
            for name in ("records.jsonl", "times.jsonl"):
                kept = first_lines(path / name, done)
                with written(path / name) as draft:
                    draft.write_bytes(kept)
            remove_drafts(path)
            shutil.rmtree(path / "models", ignore_errors=True)
            _write_json(path / "status.json", _status("running", done, settings.rounds))
            return cls(path, settings.rounds, lock, done)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, record: Record) -> None:
        """Add a round's line; its time goes to another file: it is never the same twice."""
        line = json.dumps(_plain(record), allow_nan=False) + "\n"
        took = json.dumps({"t": record.t, "seconds": round(record.seconds, 6)}) + "\n"
        try:
            for file, text in ((self._records, line), (self._times, took)):
                file.write(text)
                file.flush()
        except OSError as error:
            raise cannot_write(self.path / "records.jsonl", error) from error
        self._hash.update(line.encode())
        self.done = record.t

    def records_sum(self) -> str:
        """The checksum of all records so far, which are on the disk when this returns."""
        os.fsync(self._records.fileno())
        return self._hash.hexdigest()

    def save_models(self, vectors: dict[str, Vector], layout: Layout | None) -> None:
        """The final models, each with its tensors by name; all of them or none."""
        with written(self.path / "models", folder=True) as draft:
            for name, w in vectors.items():
                tensors = layout.unflatten(w) if layout else {"w": w}
                save_file({n: t.clone() for n, t in tensors.items()}, draft / f"{name}.safetensors")

    def close(self, state: str, reason: str = "") -> None:
        """Write how the run ended, if possible, and release the lock."""
        self.state = state
        with contextlib.suppress(OSError):
            self._records.close()
            self._times.close()
        with contextlib.suppress(RunError):
            _write_json(self.path / "status.json", _status(state, self.done, self._rounds, reason))
        self._lock.release()


def first_lines(path: Path, count: int) -> bytes:
    """The first complete lines of a file."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return b"".join(line + b"\n" for line in lines[:count])


class Run(NamedTuple):
    """A run folder, read."""

    path: Path
    settings: Settings
    status: dict[str, Any]
    environment: dict[str, Any]
    records: list[dict[str, Any]]

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """Rounds and values of a model's metric, where it was evaluated."""
        pairs = [
            (r["t"], r["metrics"][model][metric]) for r in self.records if model in r["metrics"]
        ]
        return [t for t, _ in pairs], [float("nan") if v is None else v for _, v in pairs]

    @property
    def models(self) -> list[str]:
        """The names of the models that were evaluated, "plain" first."""
        return next((list(r["metrics"]) for r in self.records if r["metrics"]), [])


def read_run(path: Path) -> Run:
    """Read the folder of a run that has ended or is under way."""
    for name in ("settings.toml", "environment.json", "records.jsonl", "status.json"):
        check((path / name).is_file(), f"{path} is not a run folder: no {name} in it.")
    settings = make_settings(read_table(str(path / "settings.toml")))
    try:
        # What follows the last newline is incomplete.
        lines = (path / "records.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        records = [_record(json.loads(line)) for line in lines]
        status, around = (
            json.loads((path / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("status", "environment")
        )
        check(status["state"] in STATES and is_count(status["done"], 0), "status.json")
        check(isinstance(around, dict), "environment.json")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"The run folder {path} is damaged: {reason:.200}") from None
    return Run(path, settings, status, around, records)


def seconds_of(path: Path) -> dict[int, float]:
    """Round -> how long it took, as far as times.jsonl in a run folder says."""
    file = path / "times.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        times = json.loads(f"[{','.join(lines)}]")  # at once: a third of the time
        return {line["t"]: float(line["seconds"]) for line in times}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is damaged: {type(error).__name__}: {error}.") from None


def run_name(settings: Settings, *, what: str = "", seed: bool = False) -> str:
    """The name of a run's folder: `what`, or data and algorithm; its seed if asked; its hash."""
    what = what or f"{Path(settings.data.name).stem}-{settings.algorithm.name}"
    return f"{what}-s{settings.seed}-{settings.run_id}" if seed else f"{what}-{settings.run_id}"


def state_of(run: Run) -> str:
    """The state in the folder; \"interrupted\" if its process is gone."""
    state = str(run.status["state"])
    return "interrupted" if state == "running" and not is_running(run.path) else state


def _record(line: Any) -> dict[str, Any]:
    """A line of records.jsonl, if it is one."""
    if not is_count(line["t"]) or not all(isinstance(m, dict) for m in line["metrics"].values()):
        raise ValueError(f"a record reads {line!r:.80}")
    return line  # type: ignore[no-any-return]


def check_free(path: Path) -> None:
    """A run never writes over anything."""
    try:
        taken = os.path.lexists(path) or path.exists()
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
    if taken:
        raise UsageError(
            f"The output folder {path} exists already; {_advice(path)}choose another with --out, "
            "or remove it."
        )


def _advice(path: Path) -> str:
    """What can be done with a run that did not finish."""
    try:
        status = json.loads((path / "status.json").read_text(encoding="utf-8"))
        if status["state"] == "done":
            return ""
        return (
            f"it holds a run of which {status['done']} of {status['rounds']} rounds are done: "
            f"`wima resume {path}` goes on with it. Or "
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def free_path(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that is free."""
    candidate, number = path, 2
    while os.path.lexists(candidate):
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def environment() -> dict[str, Any]:
    """What a number depends on besides the settings."""
    packages = {name: version(name) for name in ("torch", "numpy", "scikit-learn", "safetensors")}
    return {
        "wima": __version__,
        "code": _commit(),
        "python": platform.python_version(),
        **packages,
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the code, if it runs from a checkout; a + marks uncommitted changes."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _status(state: str, done: int, rounds: int, reason: str = "") -> dict[str, Any]:
    return {"state": state, "done": done, "rounds": rounds, "reason": reason}


def _write_json(path: Path, content: Any) -> None:
    replace_text(path, json.dumps(content, indent=2) + "\n")


def _plain(record: Record) -> dict[str, Any]:
    """A record as JSON has it: no NaN or infinity."""
    metrics = {
        model: {name: value if isfinite(value) else None for name, value in values.items()}
        for model, values in record.metrics.items()
    }
    line = {"t": record.t, "cohort": record.cohort, "lr": record.lr, "metrics": metrics}
    faults = {"dropped": record.dropped, "excluded": record.excluded}
    return {**line, **{name: clients for name, clients in faults.items() if clients}}
