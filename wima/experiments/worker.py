"""A worker process that executes runs for a sweep, one after another.

A message to it is a run, `{"path": ..., "settings": ...}`.  A message from it is a round of that
run, `{"t": 3}`, or its end, `{"end": "done", "message": ""}`.
"""

import contextlib
import os
import signal
import tomllib
from functools import partial
from pathlib import Path

from wima.core.errors import Diverged, RunError, UsageError
from wima.core.signals import Interrupted
from wima.core.workers import Parent
from wima.experiments.sweep import ELSEWHERE, ENDED, end_of
from wima.runs.launch import Display, MakeDisplay, launch, resume
from wima.runs.settings import make_settings
from wima.simulation.simulate import Record
from wima.storage.files import Locked


class ProgressReporter(Display):
    """Reports each round to the sweep; stops the run if the sweep is gone."""

    def __init__(self, sweep: Parent, rounds: int, done: int) -> None:
        self._sweep = sweep
        self._report(done)

    def update(self, record: Record) -> None:
        self._report(record.t)

    def _report(self, t: int) -> None:
        try:
            self._sweep.send({"t": t})
        except BrokenPipeError:  # the sweep was killed: write a checkpoint and exit
            os.kill(os.getpid(), signal.SIGTERM)


def run_or_resume(path: Path, settings: str, display: MakeDisplay) -> tuple[str, str]:
    """Start or resume a run, unless it has ended; returns its final state and the reason."""
    existed = path.exists()
    try:
        if (ended := end_of(path)) in ENDED:
            return ended, ""
        wanted = make_settings(tomllib.loads(settings))
        if existed:
            resume(path, display, names=wanted.own_names())
        else:
            command = ["wima", "run", os.path.relpath(path / "settings.toml")]
            launch(wanted, path, display, command)
    except Locked as reason:
        return ELSEWHERE, str(reason)
    except Interrupted as reason:
        return reason.state, str(reason)
    except Diverged as reason:
        return "diverged", str(reason)
    except (UsageError, RunError) as reason:
        # Another process may just have started or ended it: `launch` and `resume` then refuse it.
        if isinstance(reason, UsageError) and path.exists() and not existed:
            return run_or_resume(path, settings, display)
        ended = end_of(path)
        return (ended, "") if ended in ENDED else ("failed", str(reason))
    return "done", ""


def main() -> None:
    """Execute runs until the sweep has no more or a run is interrupted."""
    sweep, process = Parent(), os.getppid()
    for run, _ in sweep:
        if os.getppid() != process:  # the sweep was killed
            break
        progress = partial(ProgressReporter, sweep)
        end, message = run_or_resume(Path(run["path"]), run["settings"], progress)
        with contextlib.suppress(BrokenPipeError):
            sweep.send({"end": end, "message": message})
        if end == "interrupted":
            break
