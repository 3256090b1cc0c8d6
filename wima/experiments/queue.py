"""The jobs that were submitted for the runs of a folder, and which of them SLURM still has.

Each submission has a folder, `slurm/jobs`, `slurm/jobs-2`, ..., with submitit's files, the logs and
`jobs.json`: job -> run.
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
INTERVAL = 5.0  # seconds between two questions to SLURM
# One line per job: its number, and its place in the array or N/A.
COMMAND = ["squeue", "--me", "--noheader", "--array", "--format=%F %K"]


def write_jobs(place: Path, runs: dict[str, str]) -> None:
    """Write down which job executes which run."""
    replace_text(place / JOBS, json.dumps(runs, indent=1) + "\n")


class Queue:
    """The newest job of each run; SLURM is asked every few seconds."""

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
        """Whether SLURM has a job for the run; None if there never was one, or SLURM is silent.

        A job counts until it was missing twice: what it wrote last may reach this machine later.
        """
        if run not in self._jobs or self._there is None:
            return None
        job = self._jobs[run][0]
        return job in self._there or job in (self._there_before or ())

    def reason(self, run: str) -> str:
        """The last line that the run's job wrote to its log, or that SLURM wrote about it."""
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
    """The user's jobs that wait or run; None if SLURM cannot be asked."""
    if shutil.which(COMMAND[0]) is None:
        return None
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    pairs = (line.split() for line in done.stdout.splitlines())
    return {job if place == "N/A" else f"{job}_{place}" for job, place in pairs}
