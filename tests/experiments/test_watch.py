"""Runs that others execute, and jobs of SLURM, without a SLURM."""

import json
import signal
import sys

import pytest

from tests.helpers.sweeps import SMALL, jobs_of, states
from wima.core.errors import UsageError
from wima.experiments import slurm
from wima.experiments.slurm import Queue, RemoteRuns, RunJob, missing, write_jobs
from wima.runs.launch import launch
from wima.storage.files import Lock


def folder_of(path, state, rounds=0, reason=""):
    """A run folder, as far as a table reads it."""
    path.mkdir(parents=True)
    status = {"state": state, "done": rounds, "reason": reason}
    (path / "status.json").write_text(json.dumps(status))
    records = [json.dumps({"t": t, "metrics": {}}) + "\n" for t in range(1, rounds + 1)]
    (path / "records.jsonl").write_text("".join([*records, '{"t": 99']))  # the last line is cut off


@pytest.fixture
def squeue(monkeypatch):
    """What SLURM has; the test changes it, and every question is answered at once."""
    jobs = set()
    monkeypatch.setattr(slurm, "_squeue", lambda: None if None in jobs else set(jobs))
    monkeypatch.setattr(slurm, "INTERVAL", 0.0)
    return jobs


def test_a_table_is_read_from_folders_and_nothing_is_written(tmp_path):
    jobs = jobs_of("lr=0.1,0.2,0.3,0.4,0.5,0.6")
    kinds = ["running", "done", "diverged", "failed", "interrupted"]
    for job, state in zip(jobs, kinds, strict=False):
        folder_of(tmp_path / job.name, state, rounds=4, reason="why" if state == "failed" else "")
    before = sorted(tmp_path.rglob("*"))
    watch = RemoteRuns(jobs, tmp_path)
    assert states(watch) == [*kinds, "waiting"]
    assert watch.states[0].t == 4 and watch.states[3].message == "why"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_ends_when_all_runs_have(tmp_path):
    job, other = jobs_of("lr=0.1,0.2")
    folder_of(tmp_path / job.name, "done", rounds=6)
    folder_of(tmp_path / other.name, "running", rounds=2)
    watch, looks = RemoteRuns([job, other], tmp_path), []
    for _ in watch.run():
        looks.append(states(watch))
        status = {"state": "done", "done": 6, "reason": ""}
        (tmp_path / other.name / "status.json").write_text(json.dumps(status))
    assert looks == [["done", "running"], ["done", "done"]]


def test_a_folder_that_is_damaged_is_named(tmp_path):
    (job,) = jobs_of()
    (tmp_path / job.name).mkdir()
    (watched,) = RemoteRuns([job], tmp_path).states
    assert watched.state == "broken" and job.name in watched.message


def test_a_job_counts_until_it_was_missing_twice(tmp_path, squeue):
    write_jobs(tmp_path / "slurm" / "jobs", {"7_0": "a", "7_1": "b"})
    queue = Queue(tmp_path)
    squeue.update({"7_0"})
    queue.refresh()
    assert [queue.has(run) for run in "abc"] == [True, False, None]
    squeue.clear()
    queue.refresh()
    assert queue.has("a") is True
    queue.refresh()
    assert queue.has("a") is False
    squeue.add(None)
    queue.refresh()
    assert queue.has("a") is None


def test_the_newest_job_of_a_run_counts_and_a_damaged_list_is_refused(tmp_path, squeue):
    write_jobs(tmp_path / "slurm" / "jobs-2", {"7": "a"})
    write_jobs(tmp_path / "slurm" / "jobs", {"8": "a"})
    squeue.add("8")
    queue = Queue(tmp_path)
    queue.refresh()
    assert queue.has("a")
    (tmp_path / "slurm" / "jobs" / "jobs.json").write_text("{")
    with pytest.raises(UsageError, match=r"jobs\.json is damaged"):
        queue.refresh()


def test_a_run_waits_while_it_has_a_job_and_failed_when_the_job_is_gone(tmp_path, squeue):
    jobs = jobs_of("lr=0.1,0.2,0.3")
    place = tmp_path / "slurm" / "jobs"
    write_jobs(place, {f"7_{i}": job.name for i, job in enumerate(jobs)})
    folder_of(tmp_path / jobs[0].name, "interrupted", rounds=2)
    folder_of(tmp_path / jobs[1].name, "running", rounds=2)
    squeue.update({"7_0", "7_1", "7_2"})
    watch = RemoteRuns(jobs, tmp_path)
    assert states(watch) == ["waiting", "running", "waiting"]
    assert missing(jobs, tmp_path) == []
    squeue.clear()
    (place / "7_2_0_log.err").write_text("Traceback\nError: no such data.\nsrun: error: n1: 2\n")
    for _ in range(2):
        watch.look()
    assert states(watch) == ["interrupted", "failed", "failed"]
    assert watch.states[1].message == "job 7_1 ended and left no log"
    assert watch.states[2].message == "no such data."


def test_a_run_that_a_process_holds_has_not_failed_though_its_old_job_is_gone(tmp_path, squeue):
    (job,) = jobs_of()
    write_jobs(tmp_path / "slurm" / "jobs", {"7": job.name})
    folder_of(tmp_path / job.name, "running", rounds=2)
    lock = Lock(tmp_path / job.name)
    watch = RemoteRuns([job], tmp_path)
    assert states(watch) == ["running"]
    lock.release()
    watch.look()
    assert states(watch) == ["failed"]


@pytest.fixture
def handlers():
    """The signals that a job takes over are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_job_executes_its_run_once(tmp_path, handlers):
    (job,) = jobs_of()
    path, settings = tmp_path / "slurm" / job.name, job.settings.to_toml()
    RunJob()(str(path), settings)
    stamp = (path / "status.json").stat().st_mtime_ns
    RunJob()(str(path), settings)
    assert (path / "status.json").stat().st_mtime_ns == stamp
    launch(job.settings, tmp_path / job.name)
    one, other = (folder / "records.jsonl" for folder in (path, tmp_path / job.name))
    assert one.read_bytes() == other.read_bytes()


def test_a_job_whose_run_fails_says_why_in_its_log(tmp_path, handlers, capsys):
    (job,) = jobs_of("clients_per_round=1000")
    with pytest.raises(SystemExit) as end:
        RunJob()(str(tmp_path / "run"), job.settings.to_toml())
    assert end.value.code == 1 and not (tmp_path / "run").exists()
    assert "Error: clients_per_round must be at most" in capsys.readouterr().err


def test_a_job_that_is_requeued_goes_on_until_slurm_ends_it(handlers, tmp_path, monkeypatch):
    calls = []

    def requeue(number, frame):
        calls.append(number)
        sys.exit(-1)  # as submitit does

    def work(self, path, settings):
        signal.raise_signal(signal.SIGUSR2)
        calls.append("went on")
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGUSR2, requeue)
    monkeypatch.setattr(RunJob, "_execute", work)
    with pytest.raises(SystemExit) as end:
        RunJob()("run", "")
    assert calls == [signal.SIGUSR2, "went on"] and end.value.code == 128 + signal.SIGTERM
    again = RunJob().checkpoint("run", "")
    assert isinstance(again.function, RunJob) and again.args == ("run", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cpus", "2"], "--cpus is for SLURM jobs; add --slurm."),
        (["--slurm", "--jobs", "2"], "--parallel"),
        (["--slurm", "--time", "1"], "--time"),
        (["--slurm", "--memory", "x"], "--memory"),
        (["--watch"], "no runs to watch"),
    ],
)
def test_options_that_make_no_sense_end_with_2(tmp_path, cli, options, message):
    code, _, errors = cli("sweep", "digits", *SMALL, *options)
    assert code == 2 and message in errors
    assert not list(tmp_path.iterdir())


def test_without_submitit_the_package_to_install_is_named(tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    for more in ([], ["--dry-run"]):
        code, out, errors = cli("sweep", "digits", *SMALL, "--slurm", *more)
        assert code == 2 and not out and "pip install 'wima[slurm]'" in errors
        assert not list(tmp_path.iterdir())
