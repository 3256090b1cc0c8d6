"""Submits runs to SLURM as one array job, with submitit."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wima.core.errors import UsageError, check
from wima.experiments.expand import Job
from wima.experiments.queue import FOLDER, Queue, write_jobs
from wima.experiments.sweep import State
from wima.runs.folder import free_path
from wima.storage.files import cannot_write

if TYPE_CHECKING:
    from submitit import SlurmExecutor

TIMEOUTS = 1000  # how often a job is requeued at its time limit


class Resources(NamedTuple):
    """The resources of a job."""

    partition: str | None = None
    time: int = 60  # minutes
    cpus: int = 1
    gpus: int | None = None
    memory: int | None = None  # GB
    parallel: int | None = None  # parallel jobs


def missing(jobs: Iterable[Job], folder: Path) -> list[State]:
    """The runs that have not ended, are not being executed and have no job yet."""
    queue = Queue(folder)
    queue.refresh()
    states = [State(job, folder) for job in jobs if not queue.has(job.name)]
    return [state for state in states if state.state == "waiting"]


def submit(states: Sequence[State], folder: Path, wanted: Resources) -> None:
    """Submit a job for each run; if SLURM rejects them, nothing is left behind."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from wima.experiments.job import RunJob

    place = _place(folder)
    executor = _executor(place, wanted, len(states))
    paths = [str(state.path.absolute()) for state in states]
    settings = [state.job.settings.to_toml() for state in states]
    with _new_folder(place):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
                jobs = executor.map_array(RunJob(), paths, settings)
        except (FailedJobError, FailedSubmissionError) as error:
            raise UsageError(f"SLURM rejected the jobs: {_one_line(str(error))}.") from None
    write_jobs(place, {j.job_id: s.job.name for j, s in zip(jobs, states, strict=True)})


def script(count: int, folder: Path, wanted: Resources) -> str:
    """The batch script for `count` runs, as `submit` would pass it to sbatch."""
    executor = _executor(_place(folder), wanted, count)
    if count > 1:  # a single job is not an array
        executor.parameters["map_count"] = count
    return executor._make_submission_file_text(executor._submitit_command_str, "")


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


def _place(folder: Path) -> Path:
    place = free_path(folder.absolute() / FOLDER / "jobs")
    check(
        "%" not in str(place), f"SLURM expands % in paths; choose an --out without %, got {folder}."
    )
    return place


def _executor(place: Path, wanted: Resources, count: int) -> SlurmExecutor:
    from submitit import SlurmExecutor

    optional = {
        "partition": wanted.partition,
        "gpus_per_node": wanted.gpus,
        "mem": wanted.memory and f"{wanted.memory}GB",
    }
    executor = SlurmExecutor(place, max_num_timeout=TIMEOUTS)
    executor.update_parameters(
        job_name="wima",
        time=wanted.time,
        cpus_per_task=wanted.cpus,
        srun_args=[f"--cpus-per-task={wanted.cpus}"],  # since 22.05 srun does not inherit it
        array_parallelism=wanted.parallel or count,
        additional_parameters={"requeue": True},
        **{name: value for name, value in optional.items() if value is not None},
    )
    return executor


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """Create a folder; if the block fails, remove it and the parents created for it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True)
        yield
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in missing[1:]:
                folder.rmdir()
        if isinstance(error, OSError):
            raise cannot_write(path, error, UsageError) from error
        raise


def _one_line(text: str) -> str:
    lines = [line.removeprefix("sbatch: error: ").strip(" .") for line in text.splitlines()]
    return "; ".join(filter(None, lines)) or "no reason was given"
