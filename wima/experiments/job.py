"""What a SLURM job executes: one run of a sweep, from the start or from its checkpoint.

submitit pickles what it submits; here, only the name of the class and two strings.
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
from wima.runs.launch import Progress
from wima.storage.lock import is_running

PATIENCE = 60  # seconds to wait for the previous job to end, perhaps on another node


class RunJob:
    """Starts or resumes the run; does nothing if it has already ended."""

    def __call__(self, path: str, settings: str) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the run handles it
        _keep_running_when_requeued()
        try:
            self._execute(Path(path), settings)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGTERM)

    def checkpoint(self, path: str, settings: str) -> DelayedSubmission:
        """What submitit requeues at the time limit: the same run."""
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
    """Keep submitit from exiting after it requeues the job.

    It requeues at SIGUSR2, shortly before the time limit.  The run then continues until SLURM ends
    the requeued job: with SIGTERM, at which the round is finished and a checkpoint is written, and
    after `KillWait` with SIGKILL.
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
