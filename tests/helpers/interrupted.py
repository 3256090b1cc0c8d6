"""Runs in children of this process that end before their time."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from wima.core.signals import Interrupted
from wima.runs.launch import Runner, launch
from wima.runs.settings import Settings, make_settings
from wima.simulation.simulate import Record

BASE = {
    "data": "digits",
    "clients": 12,
    "rounds": 24,
    "clients_per_round": 3,
    "lr": 0.05,
    "engine": "serial",
    "averagers": [
        "wima:window=5",
        "wima:window=5:buckets=2",
        "ema",
        {"name": "lawa", "k": 3, "every": 2},
        {"name": "swa", "start": 10, "cycle": 3},
    ],
    "checkpoint_every": 4,
    "checkpoint_minutes": 0.0,
}
FILES = {"window_store": "files", "client_memory_gb": 0.0}


def settings_of(**changes) -> Settings:
    return make_settings({**BASE, **changes})


def in_a_fork(
    work: Callable[[], object],
    output: str | Path = os.devnull,
    at_end: Callable[[], object] = lambda: None,
) -> int:
    """Start `work` in a child of this process, which is faster than a new interpreter: its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(output, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        code = 0
    except Interrupted as error:
        code = error.code
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        at_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ends(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int, after: float) -> None:
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    ends(pid)


def after_round(t: int, happens: Callable[[], object]) -> None:
    """Let something happen when a round was recorded, before trackers hear of it."""
    append = Runner.append

    def recording(self: Runner, record: Record) -> None:
        append(self, record)
        if record.t == t:
            Runner.append = append  # it happens once
            happens()

    Runner.append = recording


def killed_after(t: int, settings: Settings, path: Path) -> None:
    """Play the run in a child that is killed when a round was recorded."""

    def work() -> None:
        after_round(t, lambda: os.kill(os.getpid(), signal.SIGKILL))
        launch(settings, path)

    assert ends(in_a_fork(work)) == -signal.SIGKILL


def outcome(path: Path) -> dict[str, bytes]:
    """All bytes that must not depend on interruptions and trackers."""
    folders = [path / "models", path / "snapshots"]
    files = [path / "records.jsonl", *sorted(f for folder in folders for f in folder.glob("*"))]
    return {file.name: file.read_bytes() for file in files}


def copy_of(interrupted: Path, folder: Path) -> Path:
    """The run of the fixture `interrupted`, to be changed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(interrupted / "run", folder)
    return folder
