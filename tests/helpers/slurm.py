"""A SLURM of two nodes on this machine, where its packages and the script that starts it are."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.paths import ROOT
from tests.helpers.waiting import wait_for

with suppress(ImportError):
    # It sets up logging when it is imported, which closes the stream of absl's handler. Here, that
    # is still standard error, which absl spares; inside a test it would be what pytest captures.
    import submitit  # noqa: F401

CLUSTER = ROOT.parent / "shared" / "slurm" / "cluster"


@contextmanager
def cluster() -> Iterator[Path]:
    """Starts the cluster and ends it; its settings, for SLURM_CONF.  One at a time: its ports."""
    if not CLUSTER.is_file():
        pytest.skip("the script that starts a SLURM is not at hand (no ../shared/slurm/cluster)")
    if not all(map(shutil.which, ("sbatch", "slurmctld", "slurmd", "munged"))) or os.getuid():
        pytest.skip("SLURM is not installed, or this is not root (apt-get install slurm-wlm munge)")
    folder = Path(tempfile.mkdtemp(prefix="wima-slurm-"))
    with FileLock(Path(tempfile.gettempdir()) / "wima-slurm.lock"):
        try:
            subprocess.run([CLUSTER, "start", folder], check=True, stdout=subprocess.DEVNULL)
            yield folder / "slurm.conf"
        finally:
            subprocess.run([CLUSTER, "stop", folder], check=True)
            shutil.rmtree(folder, ignore_errors=True)


def slurm(*command: str) -> str:
    """What a command of SLURM prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def state_of(job: str) -> str:
    """PENDING, RUNNING, COMPLETING, ..."""
    return slurm("squeue", "--noheader", "--array", "--format=%T", f"--jobs={job}").strip()


def start_again(job: str) -> None:
    """Let a requeued job begin now: SLURM would wait two minutes."""
    wait_for(lambda: state_of(job) == "PENDING", f"{job} in the queue again")
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
