"""What a job of SLURM executes: one run of a sweep, from the start or from its checkpoint.

submitit pickles what it submits; here that is the name of the class and two texts.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from submitit.helpers import DelayedSubmission

from wima.experiments.sweep import ENDED, end_of
from wima.experiments.worker import run_or_resume
from wima.runs.progress import Progress
from wima.storage.lock import is_running

PATIENCE = 60  # seconds for the end of the job before, which may be on another node


class RunJob:
    """Starts the run, or resumes it; if it has ended already, there is nothing to do."""

    def __call__(self, path: str, settings: str) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the run handles it
        _keep_running_when_requeued()
        try:
            self._execute(Path(path), settings)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGTERM)

    def checkpoint(self, path: str, settings: str) -> DelayedSubmission:
        """What is submitted when the time is up: the same again."""
        return DelayedSubmission(self, path, settings)

    def _execute(self, path: Path, settings: str) -> None:
        _wait_for_lock(path)
        if end_of(path) in ENDED:
            return
        end, message = run_or_resume(path, settings, Progress)
        if end == "interrupted":
            sys.exit(128 + signal.SIGTERM)
        if end not in ENDED:
            print("Error:", " ".join(message.splitlines()), file=sys.stderr)
            sys.exit(1)


def _keep_running_when_requeued() -> None:
    """At SIGUSR2, the time being nearly up, submitit requeues the job and exits.

    Without the exit, the run goes on until SLURM ends the requeued job: by SIGTERM, at which the
    round is finished and a checkpoint written, and after `KillWait` by SIGKILL.
    """
    requeue = signal.getsignal(signal.SIGUSR2)

    def handle(number: int, frame: FrameType | None) -> None:
        assert callable(requeue)
        with contextlib.suppress(SystemExit):
            requeue(number, frame)

    signal.signal(signal.SIGUSR2, handle)


def _wait_for_lock(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while is_running(path) and time.monotonic() < end:
        time.sleep(0.5)
