"""Users who press Ctrl-C thirty times, and terminals that are closed."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import commands
from tests.helpers.waiting import rounds_recorded, wait_for
from wima.runs.folder import FOLDER
from wima.runs.run import read_run
from wima.storage import manifests
from wima.storage.segments import Segments

LONG = ["digits", "rounds=1000000", "eval_every=50", "engine=serial", "checkpoint_every=0"]


@contextmanager
def started(path: Path, *changes: str, ignored: tuple[int, ...] = (), **options):
    """A run in a process that is ended with the block; ignored: signals, as `nohup` has it."""

    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    how = {"cwd": path.parent, "start_new_session": True, "ignored": ignored}
    process = commands.start("run", *LONG, *changes, "--out", str(path), **how, **options)
    try:
        wait_for(lambda: rounds_recorded(path) > 3 or process.poll() is not None, "three rounds")
        yield process
    finally:
        process.kill()
        process.wait()


def check_stopped(path: Path) -> None:
    """The run can go on from the round that it ended with."""
    run = read_run(path)
    found, _ = manifests.find(Segments(path / FOLDER))
    assert run.status["state"] == "interrupted" and run.t >= run.status["done"] > 0
    assert [c.t for c in found] in ([], [run.status["done"]])


@pytest.mark.parametrize("seed", range(2))
def test_ctrl_c_thirty_times_ends_without_a_traceback(seed, tmp_path):
    draw, path = random.Random(seed), tmp_path / "run"
    with started(path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for _ in range(30):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(draw.choice([0, 0.0005, 0.005, 0.02]))
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Traceback" not in output, output
    assert "Interrupted" in output
    check_stopped(path)


def test_a_closed_terminal_stops_the_run_like_sigterm(tmp_path):
    here, there = pty.openpty()
    with started(tmp_path / "run", stdin=there, stdout=there, stderr=there) as process:
        os.close(there)
        os.close(here)
        process.send_signal(signal.SIGHUP)  # as the kernel does to the session of the terminal
        assert process.wait(60) == 128 + signal.SIGHUP
    check_stopped(tmp_path / "run")


def test_a_closed_pipe_does_not_end_the_run(tmp_path):
    with started(tmp_path / "run", "rounds=100", stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
    assert read_run(tmp_path / "run").status["state"] == "done"


def test_nohup_is_respected(tmp_path):
    with started(tmp_path / "run", ignored=(signal.SIGHUP,)) as process:
        before = rounds_recorded(tmp_path / "run")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: rounds_recorded(tmp_path / "run") > before + 3, "three more rounds")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
