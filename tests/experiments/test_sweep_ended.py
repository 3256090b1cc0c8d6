"""Sweeps that are ended, or whose workers are, go on to the same bytes."""

import json
import signal
import subprocess

import pytest

from tests.helpers.commands import start
from tests.helpers.sweeps import jobs_of, played, states
from tests.helpers.waiting import wait_for
from wima.experiments.sweep import Sweep
from wima.storage.files import is_running

LONG = ["rounds=60", "eval_every=10", "eval_last=1", "checkpoint_every=15", "engine=serial"]


def test_a_worker_that_is_killed_costs_one_run(tmp_path):
    jobs = jobs_of("lr=0.1,0.05", settings=["rounds=60", "eval_every=0", "engine=serial"])
    sweep, killed = Sweep(jobs, tmp_path, 1), False
    for _ in sweep.run():
        if not killed and sweep.states[0].t:
            next(iter(sweep._current)).process.kill()
            killed = True
    assert killed and states(sweep) == ["failed", "done"]
    assert "killed by signal 9" in sweep.states[0].message
    assert states(played(jobs, tmp_path)) == ["done", "done"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    played(jobs_of(seeds=(0, 1, 2), settings=LONG), folder)
    return folder


@pytest.mark.usefixtures(
    "cold"
)  # a sweep that begins at once can meet the worker of the killed one
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_ended_in_the_middle_goes_on_to_the_same_bytes(
    tmp_path, undisturbed, number
):
    jobs = jobs_of(seeds=(0, 1, 2), settings=LONG)
    arguments = ["sweep", "digits", *LONG, "--seeds", "0-2", "--jobs", "1", "--out", "runs"]
    with start(*arguments, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: _finished(tmp_path / "runs"), "a finished run")
        process.send_signal(number)
        assert process.wait(timeout=60) == (130 if number == signal.SIGINT else -number)
    wait_for(lambda: not _running(tmp_path / "runs"), "the end of the worker")
    done = _finished(tmp_path / "runs")
    assert done and len(done) < 3
    stamps = {path: (path / "records.jsonl").stat().st_mtime_ns for path in done}
    sweep = played(jobs, tmp_path / "runs")
    assert states(sweep) == ["done"] * 3
    assert {path: (path / "records.jsonl").stat().st_mtime_ns for path in done} == stamps
    for job in jobs:
        one, other = (f / job.name / "records.jsonl" for f in (tmp_path / "runs", undisturbed))
        assert one.read_bytes() == other.read_bytes()


def _finished(folder):
    found = []
    for status in folder.glob("*/status.json"):
        if json.loads(status.read_text())["state"] == "done":
            found.append(status.parent)
    return sorted(found)


def _running(folder):
    return [path for path in folder.glob("*/status.json") if is_running(path.parent)]
