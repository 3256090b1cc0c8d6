"""A small run to be tracked, and what trackers should have of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from wima.runs import launch as launching
from wima.runs.folder import read_run
from wima.runs.launch import launch
from wima.runs.settings import Settings, make_settings
from wima.runs.trackers.base import recorded, scalars
from wima.simulation.simulation import Record

ROUNDS = 12
BASE = {
    "clients": 12,
    "rounds": ROUNDS,
    "clients_per_round": 3,
    "lr": 0.05,
    "schedule": "exponential:decay=0.9",
    "engine": "serial",
    "averagers": ["wima:window=3", "ema"],
    "eval_every": 2,
    "eval_last": 0,
    "checkpoint_every": 5,
    "checkpoint_minutes": 0.0,
}


def settings_of(**changes) -> Settings:
    return make_settings({**BASE, **changes})


def numbers(path: Path) -> dict[str, dict[int, float]]:
    """What a tracker should have of a run: name -> round -> value."""
    expected: dict[str, dict[int, float]] = {}
    for record in recorded(read_run(path)):
        for name, value in scalars(record).items():
            expected.setdefault(name, {})[record.t] = value
    return expected


def outcome(path: Path) -> dict[str, bytes]:
    """All bytes that must not depend on trackers."""
    files = [path / "records.jsonl", *sorted((path / "models").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def after_round(t: int, happens) -> None:
    """Let something happen when a round was recorded, before trackers hear of it."""
    append = launching.RunFolder.append

    def recording(self, record: Record) -> None:
        append(self, record)
        if record.t == t:
            launching.RunFolder.append = append  # it happens once
            happens()

    launching.RunFolder.append = recording


def killed_after(t: int, settings: Settings, path: Path) -> None:
    """Play the run in a child that is killed when a round was recorded."""
    pid = os.fork()
    if not pid:
        after_round(t, lambda: os.kill(os.getpid(), signal.SIGKILL))
        launch(settings, path)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
