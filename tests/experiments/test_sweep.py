"""Sweeps: what is missing is run, what stopped goes on, what failed does not stop the rest."""

import json
import signal
import subprocess
import time

import pytest

from tests.helpers.commands import start
from wima.experiments.definition import experiments
from wima.experiments.grid import expand_grid
from wima.experiments.sheet import read_sheet
from wima.experiments.sweep import Sweep
from wima.runs.folder import read_run

SMALL = ["rounds=6", "eval_every=2", "eval_last=2", "engine=serial"]
LONG = ["rounds=60", "eval_every=10", "eval_last=1", "checkpoint_every=15", "engine=serial"]


def jobs_of(*axes, seeds=(0,), settings=SMALL):
    return expand_grid("sweep", "digits", list(settings), list(axes), list(seeds), "")[1]


def played(jobs, folder, workers=2):
    sweep = Sweep(jobs, folder, workers)
    for _ in sweep.run():
        pass
    return sweep


def states(sweep):
    return [state.state for state in sweep.states]


def test_a_sweep_runs_all_once_and_then_nothing(tmp_path):
    jobs = jobs_of("lr=0.1,0.05", seeds=(0, 1))
    assert states(played(jobs, tmp_path)) == ["done"] * 4
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
    sweep = played(jobs, tmp_path, workers=1)
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


def test_a_worker_that_is_killed_costs_one_run(tmp_path):
    jobs = jobs_of("lr=0.1,0.05", settings=["rounds=60", "eval_every=0", "engine=serial"])
    sweep, killed = Sweep(jobs, tmp_path, 1), False
    for _ in sweep.run():
        if not killed and sweep.states[0].t:
            sweep._processes[0].kill()
            killed = True
    assert killed and states(sweep) == ["failed", "done"]
    assert "killed by 9" in sweep.states[0].message
    assert states(played(jobs, tmp_path)) == ["done", "done"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    played(jobs_of(seeds=(0, 1, 2), settings=LONG), folder)
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_is_ended_in_the_middle_goes_on_to_the_same_bytes(
    tmp_path, undisturbed, number
):
    jobs = jobs_of(seeds=(0, 1, 2), settings=LONG)
    arguments = ["sweep", "digits", *LONG, "--seeds", "0-2", "--jobs", "1", "--out", "runs"]
    with start(*arguments, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        _wait_for_a_finished_run(tmp_path / "runs")
        process.send_signal(number)
        assert process.wait(timeout=60) == (130 if number == signal.SIGINT else -number)
    _wait_until_nobody_works(tmp_path / "runs")
    done = _finished(tmp_path / "runs")
    assert done and len(done) < 3
    stamps = {path: (path / "records.jsonl").stat().st_mtime_ns for path in done}
    sweep = played(jobs, tmp_path / "runs")
    while "busy" in states(sweep):  # a worker outlives a killed sweep by a round
        time.sleep(0.2)
        sweep = played(jobs, tmp_path / "runs")
    assert states(sweep) == ["done"] * 3
    assert {path: (path / "records.jsonl").stat().st_mtime_ns for path in done} == stamps
    for job in jobs:
        one, other = (f / job.name / "records.jsonl" for f in (tmp_path / "runs", undisturbed))
        assert one.read_bytes() == other.read_bytes()


def _wait_for_a_finished_run(folder):
    for _ in range(3000):
        if _finished(folder):
            return
        time.sleep(0.02)
    pytest.fail("no run was finished within a minute")


def _finished(folder):
    found = []
    for status in folder.glob("*/status.json"):
        if json.loads(status.read_text())["state"] == "done":
            found.append(status.parent)
    return sorted(found)


def _wait_until_nobody_works(folder):
    from wima.storage.lock import is_running

    for _ in range(600):
        if not any(is_running(path.parent) for path in folder.glob("*/status.json")):
            return
        time.sleep(0.05)
    pytest.fail("workers of a killed sweep still run")


@pytest.mark.slow
def test_every_experiment_runs_at_the_smallest_scale(tmp_path, cli):
    for name in experiments():
        only = ["--only", "cifar10-0,fedavgm,fedprox"] if name == "tune" else []
        code, _, errors = cli("paper", name, "--scale", "smoke", "--jobs", "1", *only)
        assert code == 0, errors
        sheet = read_sheet(tmp_path / "runs" / "smoke" / f"{name}.sheet.json")
        for cell in sheet.cells:
            path = tmp_path / "runs" / "smoke" / cell.run
            if name == "tune" and not path.exists():
                continue
            assert set(cell.models.values()) <= set(read_run(path).models)


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
