"""A run's folder: everything about the run, written as it goes, readable at any moment.

settings.toml      the resolved settings; `wima run settings.toml` repeats the run
environment.json   versions, machine, command
records.jsonl      one line per round
status.json        running, done, interrupted or failed; rounds done
models/*.safetensors   the final models, by name
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file

import wima
from wima.config import Settings, make_settings, read_table
from wima.errors import UsageError, check
from wima.simulation import Record
from wima.vector import Layout, Vector


class RunFolder:
    """Writes one run; the folder must not exist yet."""

    def __init__(self, path: Path, settings: Settings, facts: dict[str, Any]) -> None:
        self.path = path
        check_free(path)
        fresh = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written whole under another name first: a folder that has the name is complete.
            fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            (fresh / "settings.toml").write_text(settings.to_toml(), encoding="utf-8")
            _write_json(fresh / "environment.json", {**environment(), **facts})
            _write_json(fresh / "status.json", _status("running", 0, settings.rounds))
            (fresh / "records.jsonl").touch()
            fresh.chmod(0o755)
            fresh.rename(path)
        except OSError as error:
            raise UsageError(f"Cannot write the run folder {path}: {error.strerror}.") from error
        finally:
            if fresh is not None:
                shutil.rmtree(fresh, ignore_errors=True)
        self._rounds, self.done = settings.rounds, 0
        self._records = (path / "records.jsonl").open("a", encoding="utf-8")

    def append(self, record: Record) -> None:
        """Add a round's line."""
        self._records.write(json.dumps(_plain(record), allow_nan=False) + "\n")
        self._records.flush()
        self.done = record.t

    def save_models(self, vectors: dict[str, Vector], layout: Layout | None) -> None:
        """The final models, each with its tensors by name."""
        folder = self.path / "models"
        folder.mkdir()
        for name, w in vectors.items():
            tensors = layout.unflatten(w) if layout else {"w": w}
            save_file({n: t.clone() for n, t in tensors.items()}, folder / f"{name}.safetensors")

    def close(self, state: str, reason: str = "") -> None:
        """Say how the run ended."""
        self._records.close()
        _write_json(self.path / "status.json", _status(state, self.done, self._rounds, reason))


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
    """Read a run folder, of a run that ended or goes on."""
    for name in ("settings.toml", "environment.json", "records.jsonl", "status.json"):
        check((path / name).is_file(), f"{path} is not a run folder: no {name} in it.")
    settings = make_settings(read_table(str(path / "settings.toml")))
    lines = (path / "records.jsonl").read_text(encoding="utf-8").split("\n")
    records = [
        json.loads(line) for line in lines[:-1]
    ]  # what follows the last newline is not whole
    status, around = (
        json.loads((path / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("status", "environment")
    )
    return Run(path, settings, status, around, records)


def check_free(path: Path) -> None:
    """A run never writes over anything."""
    try:
        taken = os.path.lexists(path) or path.exists()
    except OSError as error:
        raise UsageError(f"Cannot write the run folder {path}: {error.strerror}.") from None
    if taken:
        raise UsageError(
            f"The output folder {path} exists already; choose another with --out, or remove it."
        )


def free_path(path: Path) -> Path:
    """The path itself, or with the first number behind it that is free."""
    candidate, number = path, 2
    while os.path.lexists(candidate):
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def environment() -> dict[str, Any]:
    """What a number depends on besides the settings."""
    packages = {name: version(name) for name in ("torch", "numpy", "scikit-learn", "safetensors")}
    return {
        "wima": wima.__version__,
        "code": _commit(),
        "python": platform.python_version(),
        **packages,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """The commit of the code, if it runs from a checkout; a + marks uncommitted changes."""
    root = Path(__file__).parents[1]
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
    """Replace a file in one step, so that a reader sees the old or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def _plain(record: Record) -> dict[str, Any]:
    """A record as JSON has it: no NaN or infinity."""
    metrics = {
        model: {name: value if isfinite(value) else None for name, value in values.items()}
        for model, values in record.metrics.items()
    }
    return {**record._asdict(), "metrics": metrics, "seconds": round(record.seconds, 6)}
