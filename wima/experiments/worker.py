"""A worker process that executes runs for a sweep, one after another.

A line of standard input is a run, `{"path": ..., "settings": ...}`.  A line of standard output is a
round of that run, `{"t": 3}`, or its end, `{"end": "done", "message": ""}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from wima.core.errors import Diverged, RunError, UsageError
from wima.core.signals import Interrupted
from wima.runs.launch import MakeDisplay, NoProgress, launch, resume
from wima.runs.settings import make_settings
from wima.simulation.simulate import Record


class ProgressReporter(NoProgress):
    """Reports each round to the sweep; stops the run if the sweep is gone."""

    def __init__(self, sweep: TextIO, rounds: int, done: int) -> None:
        self._sweep = sweep
        self._report(done)

    def update(self, record: Record) -> None:
        self._report(record.t)

    def _report(self, t: int) -> None:
        try:
            send(self._sweep, {"t": t})
        except BrokenPipeError:  # the sweep was killed: write a checkpoint and exit
            os.kill(os.getpid(), signal.SIGTERM)


def send(sweep: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=sweep, flush=True)


def run_or_resume(path: Path, settings: str, display: MakeDisplay) -> tuple[str, str]:
    """Start or resume a run; returns its final state and the reason."""
    try:
        if path.exists():
            resume(path, display)
        else:
            command = ["wima", "run", os.path.relpath(path / "settings.toml")]
            launch(make_settings(tomllib.loads(settings)), path, display, command)
    except Interrupted as reason:
        return reason.state, str(reason)
    except Diverged as reason:
        return "diverged", str(reason)
    except (UsageError, RunError) as reason:
        return "failed", str(reason)
    return "done", ""


def main() -> None:
    """Execute runs until the sweep has no more or a run is interrupted."""
    sweep, process = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.getppid()
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (discards what runs print)
    for line in sys.stdin:
        if os.getppid() != process:  # the sweep was killed
            break
        run, progress = json.loads(line), partial(ProgressReporter, sweep)
        end, message = run_or_resume(Path(run["path"]), run["settings"], progress)
        with contextlib.suppress(BrokenPipeError):
            send(sweep, {"end": end, "message": message})
        if end == "interrupted":
            break


if __name__ == "__main__":
    main()
