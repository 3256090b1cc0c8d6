"""Two sweeps over the same runs at once, and a run that another process executes."""

import subprocess

from tests.helpers.commands import start
from tests.helpers.sweeps import SMALL, jobs_of, played, states
from wima.experiments import worker
from wima.experiments.sweep import Sweep
from wima.runs.launch import Display, launch
from wima.runs.run import read_run
from wima.storage.files import Lock

LONG = ["rounds=40", "eval_every=10", "eval_last=1", "engine=serial"]


def test_two_identical_sweeps_at_once_both_end_well(tmp_path):
    arguments = ["sweep", "digits", *LONG, "--seeds", "0-3", "--jobs", "1", "--out", "runs"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    sweeps = [start(*arguments, cwd=tmp_path, **pipes) for _ in range(2)]
    printed = [sweep.communicate(timeout=120) for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], printed
    assert all("Runs: 4 done." in out for out, _ in printed)
    assert any("elsewhere" in out for out, _ in printed)
    for job in jobs_of(seeds=range(4), settings=LONG):
        run = read_run(tmp_path / "runs" / job.name)
        assert run.status["state"] == "done" and run.t == 40


def test_a_run_that_another_process_executes_is_awaited(tmp_path):
    jobs = jobs_of("lr=0.1,0.05")
    played(jobs[:1], tmp_path)
    path = tmp_path / jobs[0].name
    status = (path / "status.json").read_text()
    (path / "status.json").write_text(
        status.replace('"done": 6', '"done": 3').replace('done"', 'running"', 1)
    )
    assert read_run(path).status["state"] == "running"
    lock, seen = Lock(path), set()
    sweep = Sweep(jobs, tmp_path, 1)
    for _ in sweep.run():
        seen.add(sweep.states[0].state)
        if sweep.states[1].state == "done" and (path / "status.json").read_text() != status:
            (path / "status.json").write_text(status)
            lock.release()
    assert seen >= {"elsewhere"} and states(sweep) == ["done", "done"]
    assert "running" not in seen  # this sweep never touched it


def test_a_run_whose_process_elsewhere_was_killed_is_resumed_here(tmp_path):
    (job,) = jobs_of()
    played([job], tmp_path)
    path = tmp_path / job.name
    (path / "status.json").write_text(
        (path / "status.json").read_text().replace('done"', 'running"', 1)
    )
    lock, seen = Lock(path), set()
    sweep = Sweep([job], tmp_path, 1)
    for _ in sweep.run():
        seen.add(sweep.states[0].state)
        lock.release()
    assert "elsewhere" in seen and states(sweep) == ["done"]


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
    (job,) = jobs_of(settings=[*SMALL, "rounds=8"])
    played([job], tmp_path)
    path = tmp_path / job.name
    (path / "status.json").write_text(
        (path / "status.json").read_text().replace('done"', 'interrupted"', 1)
    )
    lock = Lock(path)
    end, why = worker.run_or_resume(path, job.settings.to_toml(), Display)
    assert end == "elsewhere" and "Another process" in why
    lock.release()
