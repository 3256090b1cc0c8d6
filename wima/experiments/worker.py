"""A worker process that executes runs for a sweep, one after another.

    python -m wima.experiments.worker

A line of standard input is a run, `{"path": ..., "settings": ...}`.  A line of standard output is a
round, `{"t": 3, "rounds": 300}`, or the end of a run, `{"end": "done", "message": ""}`.
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
from typing import Any, Self, TextIO

from wima.core.errors import Diverged, RunError, UsageError
from wima.core.signals import Interrupted
from wima.runs.identity import run_command
from wima.runs.launch import Follow, launch, resume
from wima.runs.settings import make_settings
from wima.simulation.simulate import Record


class ProgressReporter:
    """Reports each round to the sweep; stops the run if the sweep is gone."""

    def __init__(self, out: TextIO, rounds: int, done: int) -> None:
        self._out, self._rounds = out, rounds
        self._report(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, record: Record) -> None:
        self._report(record.t)

    def _report(self, t: int) -> None:
        try:
            send(self._out, {"t": t, "rounds": self._rounds})
        except BrokenPipeError:  # the sweep was killed: write a checkpoint and exit
            os.kill(os.getpid(), signal.SIGTERM)


def send(out: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=out, flush=True)


def run_or_resume(path: Path, settings: str, progress: Follow) -> tuple[str, str]:
    """Start or resume a run; returns its final state and the reason."""
    try:
        if path.exists():
            resume(path, progress)
        else:
            launch(make_settings(tomllib.loads(settings)), path, progress, run_command)
    except Interrupted as reason:
        return reason.state, str(reason)
    except Diverged as reason:
        return "diverged", str(reason)
    except (UsageError, RunError) as reason:
        return "failed", str(reason)
    return "done", ""


def main() -> None:
    """Execute runs until the input ends or a run is interrupted."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (discards what runs print)
    sweep = os.getppid()
    for line in sys.stdin:
        if os.getppid() != sweep:  # it was killed
            break
        request = json.loads(line)
        path, progress = Path(request["path"]), partial(ProgressReporter, out)
        end, message = run_or_resume(path, request["settings"], progress)
        with contextlib.suppress(BrokenPipeError):
            send(out, {"end": end, "message": message})
        if end == "interrupted":
            break


if __name__ == "__main__":
    main()
