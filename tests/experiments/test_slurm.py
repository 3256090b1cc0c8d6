"""Sweeps over a real SLURM of two nodes: interrupted or not, they end with the local bytes."""

import json
import re
import shlex
import shutil
import signal
import subprocess

import pytest
import submitit  # noqa: F401  (now: its set-up of logging closes the streams of absl's)

from tests.helpers.commands import environment, start
from tests.helpers.documents import section
from tests.helpers.interrupted import outcome
from tests.helpers.slurm import cluster, slurm, start_again
from tests.helpers.sweeps import jobs_of, played, states
from tests.helpers.waiting import rounds_recorded, wait_for
from wima.experiments.slurm import missing

pytestmark = pytest.mark.world

# Long enough to be interrupted; the jobs of a cohort of 1000 fail before they have a folder.
LONG = ["rounds=300", "eval_every=20", "eval_last=1", "checkpoint_every=50", "engine=serial"]
GRID = ["clients_per_round=5,1000"]
SWEEP = ["sweep", "digits", *LONG, "--grid", *GRID, "--seeds", "0,1", "--out", "runs"]

COMMANDS = re.findall(r"^wima sweep .*$", section("experiments.md", "Sweeps on SLURM"), flags=re.M)


@pytest.fixture(scope="module", autouse=True)
def conf():
    with cluster() as settings, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(settings))
        yield settings


@pytest.mark.slow
def test_jobs_that_are_requeued_end_with_the_bytes_of_a_local_sweep(tmp_path, cli):
    jobs = jobs_of(*GRID, seeds=(0, 1), settings=LONG)
    runs, local = tmp_path / "runs", tmp_path / "local"
    with start(*SWEEP, "--slurm", cwd=tmp_path, env=environment(), stderr=subprocess.PIPE) as table:
        wait_for(lambda: (runs / "slurm" / "jobs" / "jobs.json").exists(), "the submission")
        submitted = {v: k for k, v in _jobs(runs).items()}
        assert list(submitted) == [job.name for job in jobs] and missing(jobs, runs) == []
        first, second = (submitted[job.name] for job in jobs[:2])
        _interrupt(
            {
                runs / jobs[0].name: ("scontrol", "requeue", first),  # as after a preemption
                runs / jobs[1].name: ("scancel", "--signal=USR2", second),  # the time is nearly up
            }
        )
        table.send_signal(signal.SIGINT)
        assert table.wait(timeout=60) == 130 and "The runs continue" in table.stderr.read()
    nodes = slurm("scontrol", "show", "job", first.partition("_")[0])
    assert "NodeList=n1" in nodes and "NodeList=n2" in nodes
    for job in (first, second):
        start_again(job)
    code, _, errors = cli(*SWEEP, "--watch")
    assert code == 1 and "2 done, 2 failed" in errors and "clients_per_round must" in errors
    assert states(played(jobs, local)) == ["done", "done", "failed", "failed"]
    for job in jobs[:2]:
        assert outcome(runs / job.name) == outcome(local / job.name)
        one, other = (folder / job.name / "settings.toml" for folder in (runs, local))
        assert one.read_bytes() == other.read_bytes()
    assert (runs / "sweep.sheet.json").exists()
    assert states_of(missing(jobs, runs)) == ["waiting"] * 2  # those that failed


def states_of(found):
    return [state.state for state in found]


def _jobs(runs):
    return json.loads((runs / "slurm" / "jobs" / "jobs.json").read_text())


def _interrupt(commands):
    """Give each run's command as soon as it has recorded a round; it keeps what it has."""
    given = {}

    def all_interrupted():
        for run, command in commands.items():
            if run not in given and rounds_recorded(run):
                given[run] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        return len(given) == len(commands) and all(map(_is_interrupted, commands))

    wait_for(all_interrupted, "the end of a round")
    for process in given.values():  # scancel goes on trying, since the job is no longer running
        process.kill()
        process.wait()


def _is_interrupted(run):
    status = json.loads((run / "status.json").read_text())
    return status["state"] == "interrupted" and 0 < status["done"] < status["rounds"]


def test_a_dry_run_prints_the_script_and_submits_nothing(tmp_path, cli):
    asked = ["--partition", "main", "--time", "30", "--cpus", "1", "--parallel", "2"]
    code, out, _ = cli(*SWEEP, "--slurm", "--dry-run", *asked)
    assert code == 0 and out.count("waiting ") == 4
    options = {line.removeprefix("#SBATCH --") for line in out.splitlines() if "#SBATCH" in line}
    wanted = {"array=0-3%2", "partition=main", "time=30", "cpus-per-task=1", "requeue"}
    assert wanted < options and "submitit.core._submit" in out
    assert not list(tmp_path.iterdir()) and not slurm("squeue", "--noheader")
    script = tmp_path / "script.sh"
    script.write_text(out[out.index("#!/bin/bash") :])
    slurm("sbatch", "--test-only", str(script))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_on_the_page_are_understood(tmp_path, cli, command):
    (tmp_path / "runs" / "sweep").mkdir(parents=True)
    code, out, _ = cli(*shlex.split(command, comments=True)[1:], "--dry-run")
    assert (
        code == 0
        and out.count("waiting ") == 6
        and ("--slurm" in command) == ("sbatch" in out.lower())
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--partition", "nowhere"], "invalid partition specified: nowhere"),
        (["--gpus", "1"], "generic resource"),
        (["--memory", "1000000"], "Memory specification can not be satisfied"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing(tmp_path, cli, asked, message):
    code, _, errors = cli(*SWEEP, "--slurm", *asked)
    assert code == 2 and message in errors and len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_sbatch_nothing_is_submitted(tmp_path, cli, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").symlink_to(shutil.which("srun"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    code, _, errors = cli(*SWEEP, "--slurm")
    assert code == 2 and "needs sbatch, which is not in PATH" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
