"""A run's folder: everything about the run, written as it proceeds, readable at any time.

settings.toml      the resolved settings; `wima run settings.toml` repeats the run
environment.json   versions, machine, command; the identity of the run, and who made the folder
records.jsonl      one line per round; the same bytes if the run is repeated or resumed
times.jsonl        how long each round took
status.json        running, done, interrupted, pruned, diverged or failed; rounds done; checksums
checkpoints/       what `wima resume` starts from, including a copy of the records
models/*.safetensors   the final models, by name
snapshots/*.safetensors   means of consecutive models, for windows that are chosen later
lock               held by the process that executes the run
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wima.core.errors import UsageError, check
from wima.core.machine import processor
from wima.core.text import typed_command
from wima.core.version import __version__
from wima.runs.own_code import IN_PYTHON, OWN, label
from wima.runs.record import RECORDS, TIMES, keep
from wima.runs.settings import Settings
from wima.storage import files

FOLDER, SNAPSHOTS = "checkpoints", "snapshots"  # in the run folder
COPY = f"{FOLDER}/{RECORDS}"


def create_folder(path: Path, settings: Settings, facts: dict[str, Any]) -> files.Lock:
    """Create the folder of a new run, which must not exist; returns its lock.

    facts: added to environment.json.
    """
    check_free(path)
    for draft in files.drafts_of(path):
        if (draft / "lock").exists() and not files.is_running(draft):  # its process was killed
            shutil.rmtree(draft, ignore_errors=True)
    with files.written(path, folder=True, kind=UsageError) as draft:
        lock = files.Lock(draft, "lock.new")
        (draft / "lock.new").rename(draft / "lock")  # so that others never see it without a holder
        (draft / "settings.toml").write_text(settings.to_toml(), encoding="utf-8")
        write_json(draft / "environment.json", {**environment(), **facts})
        write_status(draft, settings, "running", 0)
        for name in (RECORDS, TIMES):
            (draft / name).touch()
    return lock


def reopen_folder(path: Path, settings: Settings, done: int, records: Path) -> None:
    """Resume after `done` rounds, whose records are in a file; later rounds are repeated."""
    try:
        files.remove_drafts(path)
        for file in (path / RECORDS, path / COPY):
            if file.parent.is_dir():
                keep(records, done, file)
        keep(path / TIMES, done, path / TIMES)
        shutil.rmtree(path / "models", ignore_errors=True)
        write_status(path, settings, "running", done)
    except OSError as error:
        raise files.cannot_write(path, error) from error


def write_status(
    path: Path,
    settings: Settings,
    state: str,
    done: int,
    reason: str = "",
    sums: dict[str, str] | None = None,
) -> None:
    """Write status.json.  sums: checksums of the records and models of a finished run."""
    status = {"state": state, "done": done, "rounds": settings.rounds, "reason": reason}
    where = {"resume": IN_PYTHON} if settings.data.name == OWN else {}
    last = {} if sums is None else {"sums": sums}
    write_json(path / "status.json", {**status, "settings": settings.run_id, **where, **last})


def write_json(path: Path, content: Any) -> None:
    files.replace_text(path, json.dumps(content, indent=2) + "\n")


def run_name(settings: Settings, *, what: str = "", seed: bool = False) -> str:
    """The name of a run's folder: `what`, or data and algorithm; optionally its seed; its hash."""
    what = what or f"{label(settings.data.name)}-{label(settings.algorithm.name)}"
    return f"{what}-s{settings.seed}-{settings.run_id}" if seed else f"{what}-{settings.run_id}"


def default_path(settings: Settings) -> Path:
    """The default folder of a run."""
    return Path("runs") / run_name(settings)


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
        status = json.loads(files.read_text(path / "status.json"))
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


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at a path and in its subfolders, sorted."""
    seen = set[Path]()  # links may form cycles
    for text, below, names in os.walk(folder, followlinks=True):
        place = Path(text)
        known, is_run = place.resolve() in seen, "status.json" in names
        seen.add(place.resolve())
        if is_run and not known:
            yield place
        inside = not (known or is_run)
        below[:] = sorted(name for name in below if inside and not name.startswith("."))


def environment() -> dict[str, Any]:
    """What results depend on besides the settings."""
    import torch  # imported here: reading run folders does not need it

    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    return {
        "wima": __version__,
        "code": _commit(),
        "python": platform.python_version(),
        **packages,
        "platform": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # used by torch
        "cores": os.cpu_count(),
        "command": typed_command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the code, if it is a git checkout; a + marks uncommitted changes."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root)]
    command += ["describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
