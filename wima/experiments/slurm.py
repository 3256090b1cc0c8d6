"""Runs as a SLURM array job, submitted with submitit, and runs followed while others execute them.

Each submission has a folder, `slurm/jobs`, `slurm/jobs-2`, ..., with submitit's files, the logs and
`jobs.json`, which maps jobs to runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from wima.core.errors import UsageError, check
from wima.core.signals import ASKED, handled_by
from wima.experiments.plan import Job
from wima.experiments.sweep import ENDED, Runs, RunState, end_of, states_of
from wima.runs.folder import free_path
from wima.runs.run import MALFORMED, rounds_in
from wima.storage.files import cannot_write, is_running, read_text, replace_text

if TYPE_CHECKING:
    from submitit import SlurmExecutor
    from submitit.helpers import DelayedSubmission

FOLDER, JOBS = "slurm", "jobs.json"
TIMEOUTS = 1000  # how often a job is requeued at its time limit
PATIENCE = 60  # seconds that a job waits for the previous job of its run, perhaps on another node
INTERVAL = 5.0  # seconds between queries to SLURM
# One line per job: its number, and its index in the array or N/A.
COMMAND = ["squeue", "--me", "--noheader", "--array", "--format=%F %K"]
FINAL = (*ENDED, "broken", "failed", "interrupted", "pruned")  # states that no longer change
QUIET = 60.0  # seconds without a round, after which a run's process may be dead


class Resources(NamedTuple):
    """The resources of a job."""

    partition: str | None = None
    time: int = 60  # minutes
    cpus: int = 1
    gpus: int | None = None
    memory: int | None = None  # GB
    parallel: int | None = None  # parallel jobs


def check_available() -> None:
    """Raise an error if submitit or SLURM is missing, before anything is read or written."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UsageError(
            "--slurm needs submitit, which is not installed: pip install 'wima[slurm]'"
        ) from None
    for command in ("sbatch", "srun"):
        check(
            shutil.which(command) is not None,
            f"--slurm needs {command}, which is not in PATH; submit from a login node of a SLURM "
            "cluster, or omit --slurm to run on this machine.",
        )


def missing(jobs: Iterable[Job], folder: Path) -> list[RunState]:
    """The runs that have not ended, are not being executed and have no job yet."""
    queue = Queue(folder)
    queue.refresh()
    states = states_of((job for job in jobs if not queue.has(job.name)), folder)
    return [state for state in states if state.state == "waiting"]


def submit(states: Sequence[RunState], folder: Path, resources: Resources) -> None:
    """Submit a job for each run; if SLURM rejects them, nothing is left behind."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    place = _new_place(folder)
    executor = _executor(place, resources, len(states))
    paths = [str(state.path.absolute()) for state in states]
    settings = [state.job.settings.to_toml() for state in states]
    created = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.mkdir(parents=True)
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            jobs = executor.map_array(RunJob(), paths, settings)
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in created[1:]:
                path.rmdir()
        if isinstance(error, OSError):
            raise cannot_write(place, error, UsageError) from error
        if isinstance(error, FailedJobError | FailedSubmissionError):
            lines = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines()]
            reason = "; ".join(filter(None, (line.strip(" .") for line in lines)))
            message = f"SLURM rejected the jobs: {reason or 'no reason was given'}."
            raise UsageError(message) from None
        raise
    write_jobs(place, {j.job_id: s.job.name for j, s in zip(jobs, states, strict=True)})


def script(count: int, folder: Path, resources: Resources) -> str:
    """The batch script for `count` runs, as `submit` would pass it to sbatch."""
    executor = _executor(_new_place(folder), resources, count)
    if count > 1:  # a single job is not an array
        executor.parameters["map_count"] = count
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def _new_place(folder: Path) -> Path:
    place = free_path(folder.absolute() / FOLDER / "jobs")
    check(
        "%" not in str(place), f"SLURM expands % in paths; choose an --out without %, got {folder}."
    )
    return place


def _executor(place: Path, resources: Resources, count: int) -> SlurmExecutor:
    from submitit import SlurmExecutor

    optional = {
        "partition": resources.partition,
        "gpus_per_node": resources.gpus,
        "mem": resources.memory and f"{resources.memory}GB",
    }
    executor = SlurmExecutor(place, max_num_timeout=TIMEOUTS)
    executor.update_parameters(
        job_name="wima",
        time=resources.time,
        cpus_per_task=resources.cpus,
        srun_args=[f"--cpus-per-task={resources.cpus}"],  # since 22.05 srun does not inherit it
        array_parallelism=resources.parallel or count,
        additional_parameters={"requeue": True},
        **{name: value for name, value in optional.items() if value is not None},
    )
    return executor


class RunJob:
    """What a job executes: starts or resumes its run; does nothing if it has already ended.

    submitit pickles what it submits; here, only the name of this class and two strings.
    """

    def __call__(self, path: str, settings: str) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the run handles it
        _keep_running_when_requeued()
        try:
            self._execute(Path(path), settings)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGTERM)

    def checkpoint(self, path: str, settings: str) -> DelayedSubmission:
        """What submitit requeues at the time limit: the same run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, path, settings)

    def _execute(self, path: Path, settings: str) -> None:
        from wima.experiments.worker import run_or_resume  # here: submitting needs no torch
        from wima.runs.launch import ProgressDisplay

        patience = time.monotonic() + PATIENCE
        while is_running(path) and time.monotonic() < patience:
            time.sleep(0.5)
        if end_of(path) in ENDED:
            return
        end, message = run_or_resume(path, settings, ProgressDisplay)
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


def write_jobs(place: Path, runs: dict[str, str]) -> None:
    """Record which job executes which run."""
    replace_text(place / JOBS, json.dumps(runs, indent=1) + "\n")


class Queue:
    """The newest job of each run; SLURM is queried every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._jobs: dict[str, tuple[str, Path]] = {}  # run -> job, its folder
        self._queued: set[str] | None = None
        self._queued_before: set[str] | None = None
        self._asked = -INTERVAL

    def refresh(self) -> None:
        if time.monotonic() - self._asked < INTERVAL:
            return
        self._jobs = {}
        files = self._folder.glob(f"*/{JOBS}")
        for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
            try:
                runs = dict(json.loads(read_text(file)))
            except (OSError, ValueError, TypeError) as error:
                raise UsageError(f"{file} is damaged: {error}. Remove it.") from None
            self._jobs.update({run: (job, file.parent) for job, run in runs.items()})
        self._queued_before, self._queued = self._queued, _squeue() if self._jobs else None
        self._asked = time.monotonic()

    def has(self, run: str) -> bool | None:
        """Whether the run has a job in the queue; None if it never had one, or if SLURM is down.

        A job counts until it is missing twice, because its last output may arrive with a delay.
        """
        if run not in self._jobs or self._queued is None:
            return None
        job = self._jobs[run][0]
        return job in self._queued or job in (self._queued_before or ())

    def reason(self, run: str) -> str:
        """The last line in the log of the run's job, written by the job or by SLURM."""
        job, place = self._jobs[run]
        try:
            lines = (place / f"{job}_0_log.err").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        lines = [line.strip() for line in lines if line.strip() and not line.startswith("srun: ")]
        return lines[-1].removeprefix("Error: ") if lines else f"job {job} ended and left no log"


def _squeue() -> set[str] | None:
    """The user's pending and running jobs; None if SLURM does not answer."""
    if shutil.which(COMMAND[0]) is None:
        return None
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    pairs = (line.split() for line in done.stdout.splitlines())
    return {job if index == "N/A" else f"{job}_{index}" for job, index in pairs}


class RemoteRuns(Runs):
    """Runs that other processes execute, from their folders and SLURM's queue.

    Nothing is written.  Locks are tested only where no process is expected: testing holds the lock
    for a moment, and a job that starts just then would be refused.
    """

    def __init__(self, jobs: Iterable[Job], folder: Path) -> None:
        self.states = [RunState(job, folder) for job in jobs]
        self._queue = Queue(folder)
        self.look()

    def run(self) -> Iterator[None]:
        with handled_by(self._stop, ASKED):
            while not self.stopping and any(s.state not in FINAL for s in self.states):
                time.sleep(0.5)
                self.look()
                yield

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def look(self) -> None:
        """Read the folders of all runs that have not ended."""
        self._queue.refresh()  # first: jobs that have left the queue have written everything
        for state in self.states:
            if state.state not in (*ENDED, "broken"):
                self._look(state)
        self.parallel = sum(state.state == "running" for state in self.states)

    def _look(self, state: RunState) -> None:
        has_job = self._queue.has(state.job.name)
        state.state, state.message = "waiting", ""
        if state.path.exists():
            try:
                # Not `read_run`: there may be hundreds of runs, and settings take a millisecond.
                status = json.loads(read_text(state.path / "status.json"))
                state.state, state.message = status["state"], status["reason"]
                if state.state in ENDED:
                    state.t = status["done"]
                elif state.state == "running":
                    state.count(rounds_in(state.path))
            except MALFORMED as error:
                state.state, state.message = "broken", f"{state.path} is damaged: {error}"
                return
        if has_job and state.state in ("failed", "interrupted"):  # in an earlier job
            state.state, state.message = "waiting", ""
        elif self._is_gone(state, has_job):
            state.state = "failed"
            state.message = self._queue.reason(state.job.name) if has_job is False else "killed"

    def _is_gone(self, state: RunState, has_job: bool | None) -> bool:
        """Whether a run that should be running has no process."""
        if state.state == "waiting":
            return has_job is False
        suspicious = has_job is False or (has_job is None and state.quiet() > QUIET)
        return state.state == "running" and suspicious and not is_running(state.path)
