"""Sweeps: what is missing is run, what failed does not stop the rest."""

import pytest
from rich.console import Console

from tests.helpers.sweeps import SMALL, jobs_of, played, states
from wima.experiments.plan import experiments
from wima.experiments.sweep import Sweep
from wima.runs.run import read_run


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Four runs by two workers: the jobs, their folder, their states."""
    jobs, folder = jobs_of("lr=0.1,0.05", seeds=(0, 1)), tmp_path_factory.mktemp("swept")
    return jobs, folder, states(played(jobs, folder, workers=2))


def test_a_sweep_runs_all_once_and_then_nothing(swept):
    jobs, folder, ends = swept
    assert ends == ["done"] * 4
    before = {job.name: (folder / job.name / "records.jsonl").stat().st_mtime_ns for job in jobs}
    again = played(jobs, folder)
    assert states(again) == ["done"] * 4 and again.parallel == 0
    for job in jobs:
        assert (folder / job.name / "records.jsonl").stat().st_mtime_ns == before[job.name]
        assert read_run(folder / job.name).settings == job.settings


def test_the_runs_of_a_sweep_are_those_of_wima_run(tmp_path, swept, cli):
    (job, *_), folder, _ = swept
    assert cli("run", "digits", *SMALL, "lr=0.1", "--out", "alone")[0] == 0
    one, other = folder / job.name, tmp_path / "alone"
    assert (one / "records.jsonl").read_bytes() == (other / "records.jsonl").read_bytes()


def test_failed_diverged_and_broken_runs_do_not_stop_the_rest_and_are_named(tmp_path, cli):
    axes = ["lr=0.05,0.1,1e30", "clients_per_round=5,1000"]
    jobs = jobs_of(*axes)
    folder = tmp_path / jobs[0].name
    folder.mkdir()
    (folder / "status.json").write_text("{")
    sweep = played(jobs, tmp_path)
    ends = ["broken", "failed", "done", "failed", "diverged", "failed"]
    assert states(sweep) == ends
    assert "clients_per_round" in sweep.states[1].message
    grid = [part for axis in axes for part in ("--grid", axis)]
    code, _, errors = cli("sweep", "digits", *SMALL, *grid, "--jobs", "1", "--out", ".")
    assert code == 1 and "Runs: 3 failed, 1 broken, 1 done, 1 diverged." in errors
    assert all(f"failed: {job.name}: clients_per_round must" in errors for job in jobs[1::2])
    assert f"broken: {jobs[0].name}: " in errors
    assert (folder / "status.json").read_text() == "{"


def test_the_list_of_experiments_and_a_dry_run_write_nothing(tmp_path, cli):
    _, listed, _ = cli("paper")
    assert all(name in listed for name in experiments())
    _, dry, _ = cli("paper", "window", "--scale", "smoke", "--dry-run")
    assert dry.count("waiting") == 2 and not list(tmp_path.iterdir())


def test_the_live_table_shows_names_as_they_are(tmp_path):
    (job,) = jobs_of()
    sweep = Sweep([job._replace(name="[/b]")], tmp_path, 1)
    sweep.states[0].state = "running"
    console = Console(width=80)
    with console.capture() as got:
        console.print(sweep.table())
    assert "[/b]" in got.get()
