"""The jobs submitted for the runs in a folder, and which of them are still in SLURM's queue.

Each submission has a folder, `slurm/jobs`, `slurm/jobs-2`, ..., with submitit's files, the logs and
`jobs.json`, which maps jobs to runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from wima.core.errors import UsageError
from wima.storage.files import replace_text
from wima.storage.reading import read_text

FOLDER, JOBS = "slurm", "jobs.json"
INTERVAL = 5.0  # seconds between queries to SLURM
# One line per job: its number, and its index in the array or N/A.
COMMAND = ["squeue", "--me", "--noheader", "--array", "--format=%F %K"]


def write_jobs(place: Path, runs: dict[str, str]) -> None:
    """Record which job executes which run."""
    replace_text(place / JOBS, json.dumps(runs, indent=1) + "\n")


class Queue:
    """The newest job of each run; SLURM is queried every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._jobs: dict[str, tuple[str, Path]] = {}  # run -> job, its folder
        self._there: set[str] | None = None
        self._there_before: set[str] | None = None
        self._asked = -INTERVAL

    def refresh(self) -> None:
        if time.monotonic() - self._asked < INTERVAL:
            return
        self._jobs = _read_jobs(self._folder)
        self._there_before, self._there = self._there, _squeue() if self._jobs else None
        self._asked = time.monotonic()

    def has(self, run: str) -> bool | None:
        """Whether the run has a job in the queue; None if it never had one, or if SLURM is down.

        A job counts until it is missing twice, because its last output may arrive with a delay.
        """
        if run not in self._jobs or self._there is None:
            return None
        job = self._jobs[run][0]
        return job in self._there or job in (self._there_before or ())

    def reason(self, run: str) -> str:
        """The last line in the log of the run's job, written by the job or by SLURM."""
        job, place = self._jobs[run]
        try:
            lines = (place / f"{job}_0_log.err").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip() and not line.startswith("srun: ")]
        return said[-1].removeprefix("Error: ") if said else f"job {job} ended and left no log"


def _read_jobs(folder: Path) -> dict[str, tuple[str, Path]]:
    found: dict[str, tuple[str, Path]] = {}
    for file in sorted(folder.glob(f"*/{JOBS}"), key=lambda file: file.stat().st_mtime_ns):
        try:
            jobs = dict(json.loads(read_text(file)))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{file} is damaged: {error}. Remove it.") from None
        found.update({run: (job, file.parent) for job, run in jobs.items()})
    return found


def _squeue() -> set[str] | None:
    """The user's pending and running jobs; None if SLURM does not answer."""
    if shutil.which(COMMAND[0]) is None:
        return None
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    pairs = (line.split() for line in done.stdout.splitlines())
    return {job if place == "N/A" else f"{job}_{place}" for job, place in pairs}
