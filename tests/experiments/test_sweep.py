"""Sweeps: what is missing is run, what failed does not stop the rest."""

import pytest
from rich.console import Console

from tests.helpers.sweeps import SMALL, jobs_of, played, states
from wima.experiments import live
from wima.experiments.definition import experiments
from wima.experiments.sweep import Sweep
from wima.runs.folder import read_run


def test_a_sweep_runs_all_once_and_then_nothing(tmp_path):
    jobs = jobs_of("lr=0.1,0.05", seeds=(0, 1))
    assert states(played(jobs, tmp_path, workers=2)) == ["done"] * 4
    before = {job.name: (tmp_path / job.name / "records.jsonl").stat().st_mtime_ns for job in jobs}
    again = played(jobs, tmp_path)
    assert states(again) == ["done"] * 4 and not again._threads
    for job in jobs:
        assert (tmp_path / job.name / "records.jsonl").stat().st_mtime_ns == before[job.name]
        assert read_run(tmp_path / job.name).settings == job.settings


def test_the_runs_of_a_sweep_are_those_of_wima_run(tmp_path, cli):
    (job,) = jobs_of()
    played([job], tmp_path)
    assert cli("run", "digits", *SMALL, "--out", "alone")[0] == 0
    one, other = (tmp_path / name / "records.jsonl" for name in (job.name, "alone"))
    assert one.read_bytes() == other.read_bytes()


def test_failures_and_divergences_do_not_stop_the_rest(tmp_path):
    jobs = jobs_of("lr=0.1,1e30", "clients_per_round=5,1000")
    sweep = played(jobs, tmp_path)
    assert states(sweep) == ["done", "failed", "diverged", "failed"]
    assert "clients_per_round" in sweep.states[1].message
    assert states(played(jobs, tmp_path)) == ["done", "failed", "diverged", "failed"]


def test_a_broken_folder_is_named_and_left_alone(tmp_path):
    jobs = jobs_of("lr=0.1,0.05")
    folder = tmp_path / jobs[0].name
    folder.mkdir()
    (folder / "status.json").write_text("{")
    sweep = played(jobs, tmp_path)
    assert states(sweep) == ["broken", "done"]
    assert (folder / "status.json").read_text() == "{"


def test_the_list_of_experiments_and_a_dry_run_write_nothing(tmp_path, cli):
    _, listed, _ = cli("paper")
    assert all(name in listed for name in experiments())
    _, dry, _ = cli("paper", "window", "--scale", "smoke", "--dry-run")
    assert dry.count("waiting") == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paper", "windw"], "did you mean 'window'"),
        (["paper", "window", "--scale", "cp"], "did you mean 'cpu'"),
        (["paper", "window", "--seeds", "x"], "Expected seeds"),
        (["paper", "sota", "--only", "femnst"], "did you mean 'femnist'"),
        (["sweep", "digits", "--grid", "lrr=1"], "did you mean 'lr'"),
        (["sweep", "digits", "--grid", "lr"], "key=value,value"),
    ],
)
def test_wrong_usage_ends_with_2_and_an_explanation(tmp_path, cli, arguments, message):
    code, _, errors = cli(*arguments)
    assert code == 2 and message in errors
    assert not list(tmp_path.iterdir())


def test_a_sweep_with_a_failed_run_ends_with_1_and_names_it(cli):
    grid = ["--grid", "clients_per_round=5,1000", "--jobs", "1", "--out", "r"]
    code, _, errors = cli("sweep", "digits", *SMALL, *grid)
    assert code == 1 and "1 done, 1 failed" in errors and "clients_per_round" in errors


def test_the_live_table_shows_names_as_they_are(tmp_path):
    (job,) = jobs_of()
    sweep = Sweep([job._replace(name="[/b]")], tmp_path, 1)
    sweep.states[0].state = "running"
    console = Console(width=80)
    with console.capture() as got:
        console.print(live._table(sweep))
    assert "[/b]" in got.get()
