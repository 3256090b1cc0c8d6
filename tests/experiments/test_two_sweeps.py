"""Two sweeps over the same runs at once, and a run that another process executes."""

import fcntl
import io
import subprocess
import threading

import pytest
from rich.console import Console

from tests.helpers.commands import start
from tests.helpers.sweeps import SMALL, jobs_of, played, states
from wima.core.errors import UsageError
from wima.experiments import worker
from wima.experiments.sweep import Sweep
from wima.runs.folder import create_folder
from wima.runs.launch import Display, launch, resume
from wima.runs.run import read_run
from wima.storage.files import Lock

LONG = ["rounds=40", "eval_every=10", "eval_last=1", "engine=serial"]


def played_until(job, folder, state):
    """The folder of a finished run, whose status says something else."""
    played([job], folder)
    file = folder / job.name / "status.json"
    before = file.read_text()
    file.write_text(before.replace('"done"', f'"{state}"', 1))
    assert read_run(file.parent).status["state"] == state
    return file.parent, before


def test_two_identical_sweeps_at_once_both_end_well(tmp_path):
    arguments = ["sweep", "digits", *LONG, "--seeds", "0-3", "--jobs", "1", "--out", "runs"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    sweeps = [start(*arguments, cwd=tmp_path, **pipes) for _ in range(2)]
    printed = [sweep.communicate(timeout=120) for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], printed
    assert all("Runs: 4 done." in out for out, _ in printed)
    for job in jobs_of(seeds=range(4), settings=LONG):
        run = read_run(tmp_path / "runs" / job.name)
        assert run.status["state"] == "done" and run.t == 40


def test_a_run_that_another_process_executes_is_awaited(tmp_path):
    jobs = jobs_of("lr=0.1,0.05")
    path, done = played_until(jobs[0], tmp_path, "running")
    lock, seen = Lock(path), set()
    sweep = Sweep(jobs, tmp_path, 1)
    for _ in sweep.run():
        seen.add(sweep.states[0].state)
        if sweep.states[1].state == "done":  # now the other process ends
            (path / "status.json").write_text(done)
            lock.release()
    assert "elsewhere" in seen and states(sweep) == ["done", "done"]
    assert "running" not in seen  # this sweep never touched it


def test_a_run_whose_process_elsewhere_is_killed_is_resumed_here(tmp_path):
    (job,) = jobs_of()
    path, _ = played_until(job, tmp_path, "running")
    lock, shown = Lock(path), io.StringIO()
    sweep = Sweep([job], tmp_path, 1)
    threading.Timer(1, lock.release).start()
    sweep.follow(Console(file=shown, width=200))
    lines = [line.split()[0] for line in shown.getvalue().splitlines()]
    assert lines == ["elsewhere", "done"] and states(sweep) == ["done"]


def test_a_run_that_another_process_starts_meanwhile_is_not_a_failure(tmp_path, monkeypatch):
    (job,) = jobs_of(settings=SMALL)
    path, settings = tmp_path / job.name, job.settings.to_toml()

    def late(*arguments):  # while this process prepares the run, another executes it
        launch(*arguments)
        return launch(*arguments)

    monkeypatch.setattr(worker, "launch", late)
    assert worker.run_or_resume(path, settings, Display) == ("done", "")
    assert worker.run_or_resume(path, settings, Display) == ("done", "")


def test_a_worker_says_that_another_process_has_the_run(tmp_path):
    (job,) = jobs_of()
    path, _ = played_until(job, tmp_path, "interrupted")
    lock = Lock(path)
    end, why = worker.run_or_resume(path, job.settings.to_toml(), Display)
    assert end == "elsewhere" and "Another process" in why
    lock.release()


def test_a_run_that_another_process_ends_meanwhile_is_not_a_failure(tmp_path, monkeypatch):
    (job,) = jobs_of()
    path, _ = played_until(job, tmp_path, "interrupted")

    def late(*arguments):
        resume(*arguments)
        return resume(*arguments)

    monkeypatch.setattr(worker, "resume", late)
    assert worker.run_or_resume(path, job.settings.to_toml(), Display) == ("done", "")


def test_who_starts_the_same_run_does_not_remove_the_draft_of_another(tmp_path, monkeypatch):
    """The second starts when the first has a draft, but no lock yet."""
    (job,), path, flock = jobs_of(), tmp_path / "run", fcntl.flock

    def late(*arguments):
        monkeypatch.setattr(fcntl, "flock", flock)
        create_folder(path, job.settings, {}).release()
        return flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UsageError) as error:
        create_folder(path, job.settings, {})
    assert "No such file" not in str(error.value) and read_run(path).settings == job.settings
