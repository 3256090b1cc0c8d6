"""A run that is killed at any moment resumes to the same bytes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from wima.core.errors import Diverged, RunError, UsageError
from wima.runs import checkpoint
from wima.runs import launch as launching
from wima.runs.build import build
from wima.runs.folder import read_run
from wima.runs.launch import FOLDER, Interrupted, launch, resume
from wima.runs.settings import make_settings
from wima.storage.lock import Lock
from wima.storage.segments import Segments, read_manifest

BASE = {
    "data": "digits",
    "clients": 12,
    "rounds": 24,
    "clients_per_round": 3,
    "lr": 0.05,
    "engine": "serial",
    "averagers": [
        "wima:window=5",
        "ema",
        {"name": "lawa", "k": 3, "every": 2},
        {"name": "swa", "start": 10, "cycle": 3},
    ],
    "checkpoint_every": 4,
    "checkpoint_minutes": 0.0,
}
FILES = {"window_store": "files", "client_memory_gb": 0.0}
CASES = {
    "fedavg": {},
    "fedavg-files": FILES,
    "scaffold": {"algorithm": "scaffold"},
    "scaffold-files": {"algorithm": "scaffold", **FILES},
    "adabest": {"algorithm": "adabest"},
    "adabest-files": {"algorithm": "adabest", "store_dtype": "bfloat16", **FILES},
    "mime": {"algorithm": "mime", "server": "sgd:lr=0.1"},
    "mime-files": {"algorithm": "mime", "server": "sgd:lr=0.1", **FILES},
    "fedadam": {"server": "adam:lr=0.01", "dropout": 0.3, "stragglers": 0.3},
}


def settings_of(**changes):
    return make_settings({**BASE, **changes})


def in_a_fork(work) -> int:
    """Start `work` in a child of this process, which is faster than a new interpreter: its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        code = 0
    except Interrupted as error:
        code = error.code
    finally:
        os._exit(code)


def ends(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int, after: float) -> None:
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    ends(pid)


def outcome(path: Path) -> dict[str, bytes]:
    """All bytes that must not depend on interruptions."""
    files = [path / "records.jsonl", *sorted((path / "models").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def memories(path: Path) -> dict[int, tuple]:
    """What clients remember at the end of a run."""
    run = read_run(path)
    with build(run.settings, path / FOLDER) as simulation:
        store = Segments(path / FOLDER)
        checkpoint.load(simulation, store, checkpoint.find(store)[0][0])
        simulation.state.memory.read(0, simulation.w)
        return simulation.state.memory.visited()


def same_state(a, b) -> bool:
    if isinstance(a, tuple):
        return type(a) is type(b) and all(map(same_state, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module", params=CASES)
def undisturbed(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / request.param
    settings = settings_of(**CASES[request.param])
    begin = time.perf_counter()
    launch(settings, path)
    return settings, path, time.perf_counter() - begin


def test_a_run_killed_again_and_again_comes_to_the_same_bytes(undisturbed, tmp_path):
    settings, whole, seconds = undisturbed
    draw, path = random.Random(whole.name), tmp_path / "run"
    pid = in_a_fork(lambda: launch(settings, path))
    kill(pid, draw.uniform(0.2, 1.0) * seconds)
    kills = 1
    while kills < 5:
        if not path.exists():
            pid = in_a_fork(lambda: launch(settings, path))
        elif read_run(path).status["state"] == "done":
            break
        else:
            pid = in_a_fork(lambda: resume(path))
        kill(pid, draw.uniform(0.0, 0.7) * seconds)
        kills += 1
    if not path.exists():
        launch(settings, path)
    elif read_run(path).status["state"] != "done":
        resume(path)
    assert outcome(path) == outcome(whole)
    assert same_state(tuple(memories(path).items()), tuple(memories(whole).items()))


@pytest.mark.parametrize("moment", ["segment", "manifest", "renamed", "cleaning"])
def test_killed_amid_a_checkpoint(moment, tmp_path, monkeypatch):
    settings = settings_of(algorithm="scaffold", **FILES)
    whole, path = tmp_path / "whole", tmp_path / "run"
    launch(settings, whole)

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def broken():
        places = {
            "segment": (Segments, "verify"),
            "manifest": (checkpoint, "write_manifest"),
            "renamed": (checkpoint, "let_go"),
            "cleaning": (Segments, "keep"),
        }
        owner, name = places[moment]
        if moment == "segment":
            from wima.storage import segments as store

            original, owner, name = store.digest, store, "digest"
            calls = iter(range(10**6))
            store.digest = lambda p: die() if next(calls) == 9 else original(p)
        else:
            original, calls = getattr(owner, name), iter(range(10**6))
            setattr(owner, name, lambda *a: die() if next(calls) == 2 else original(*a))
        launch(settings, path)

    assert ends(in_a_fork(broken)) == -signal.SIGKILL
    assert 0 < len(read_run(path).records) < settings.rounds
    resume(path)
    assert outcome(path) == outcome(whole)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that stopped with two checkpoints, and the same run undisturbed."""
    folder = tmp_path_factory.mktemp("interrupted")
    settings = settings_of(algorithm="scaffold", rounds=12, checkpoint_every=5)
    launch(settings, folder / "whole")

    def until_eleven():
        original = launching.RunFolder.append

        def append(self, record):
            original(self, record)
            if record.t == 11:
                os.kill(os.getpid(), signal.SIGKILL)

        launching.RunFolder.append = append
        launch(settings, folder / "run")

    assert ends(in_a_fork(until_eleven)) == -signal.SIGKILL
    return folder


def copy_of(interrupted: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(interrupted / "run", folder)
    return folder


def own_files(path: Path) -> list[Path]:
    """The files of the newest checkpoint that the one before does not need."""
    newest, older = (
        read_manifest(p, checkpoint.FORMAT) for p in checkpoint.manifests(path / FOLDER)
    )
    names = set(checkpoint.segments_of(newest)) - set(checkpoint.segments_of(older))
    return [checkpoint.manifests(path / FOLDER)[0], *(path / FOLDER / n for n in sorted(names))]


@how(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_found_and_the_checkpoint_before_is_used(interrupted, tmp_path, data):
    path = copy_of(interrupted, tmp_path / "run")
    file = data.draw(st.sampled_from(own_files(path)))
    content = bytearray(file.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "remove"]))
    if kind == "remove":
        file.unlink()
    else:
        place = data.draw(st.integers(0, len(content) - 1))
        if kind == "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content if kind == "flip" else content[:place])
    found, wrong = checkpoint.find(Segments(path / FOLDER))
    assert [c.t for c in found] == [5] and len(wrong) == (
        0 if file.suffix == ".json" and kind == "remove" else 1
    )


def test_a_run_goes_on_from_the_older_checkpoint_or_from_the_start(interrupted, tmp_path, capsys):
    for damaged, after in ((0, 10), (1, 5), (2, 0)):
        path = copy_of(interrupted, tmp_path / "run")
        for manifest in checkpoint.manifests(path / FOLDER)[:damaged]:
            manifest.write_text("{}")
        resume(path)
        assert f"Goes on after {after} of 12 rounds" in capsys.readouterr().out
        assert outcome(path) == outcome(interrupted / "whole")


def test_records_that_were_changed_are_not_built_upon(interrupted, tmp_path, capsys):
    path = copy_of(interrupted, tmp_path / "run")
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"lr": 0.05', '"lr": 0.06')
    (path / "records.jsonl").write_text("".join(lines))
    resume(path)
    assert "Goes on after 5 of 12" in capsys.readouterr().out
    assert outcome(path) == outcome(interrupted / "whole")


def test_another_configuration_or_version_is_refused_with_the_difference(
    interrupted, tmp_path, monkeypatch
):
    path = copy_of(interrupted, tmp_path / "run")
    text = (path / "settings.toml").read_text()
    (path / "settings.toml").write_text(text.replace("lr = 0.05", "lr = 0.07"))
    with pytest.raises(UsageError, match=r"lr: 0.05 then, 0.07 now"):
        resume(path)
    (path / "settings.toml").write_text(text)
    around = launching.environment()
    monkeypatch.setattr(launching, "environment", lambda: {**around, "torch": "9.9"})
    with pytest.raises(UsageError, match=r"torch: .* then, '9.9' now"):
        resume(path)


def test_a_second_process_is_refused_and_a_dead_owner_is_no_obstacle(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "run")
    ready, tell = os.pipe()

    def hold():
        lock = Lock(path)
        os.write(tell, b"x")
        time.sleep(60)
        lock.release()

    pid = in_a_fork(hold)
    os.read(ready, 1)
    with pytest.raises(UsageError, match="Another process is working on"):
        resume(path)
    kill(pid, 0)
    resume(path)
    with pytest.raises(UsageError, match="is done; there is nothing to resume"):
        resume(path)


def test_an_existing_run_is_not_overwritten_and_resume_is_offered(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "run")
    with pytest.raises(UsageError, match=r"0 of 12 rounds are done: `wima resume .*run` goes on"):
        launch(settings_of(), path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_let_the_round_finish_and_leave_a_checkpoint(number, code, tmp_path):
    settings = settings_of(rounds=10**6, checkpoint_every=0, checkpoint_minutes=60.0)
    path = tmp_path / "run"
    pid = in_a_fork(lambda: launch(settings, path))
    until = time.monotonic() + 60
    while time.monotonic() < until and not (path / "records.jsonl").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(pid, number)
    assert ends(pid) == code
    run = read_run(path)
    (found,), wrong = checkpoint.find(Segments(path / FOLDER))
    assert run.status["state"] == "interrupted" and not wrong
    assert found.t == run.status["done"] == len(run.records) > 0


def test_a_file_size_limit_ends_the_run_with_the_older_checkpoint_intact(tmp_path):
    settings, path = settings_of(algorithm="scaffold"), tmp_path / "run"

    def limited():
        original = launching.RunFolder.append

        def append(self, record):
            original(self, record)
            if record.t == 10:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

        launching.RunFolder.append = append
        try:
            launch(settings, path)
        except RunError as error:
            (tmp_path / "error").write_text(str(error))
            raise

    assert ends(in_a_fork(limited)) == 1
    assert "Cannot write" in (tmp_path / "error").read_text()
    found, _ = checkpoint.find(Segments(path / FOLDER))
    assert found[0].t == 8 and read_run(path).status["state"] == "failed"
    resume(path)
    launch(settings, tmp_path / "whole")
    assert outcome(path) == outcome(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(folder)]
    done = (
        subprocess.run(command, capture_output=True, check=False) if shutil.which("mount") else None
    )
    if done is None or done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_full_disk_ends_the_run_with_the_older_checkpoint_intact(small_disk, monkeypatch):
    settings = settings_of(algorithm="scaffold", rounds=300, averagers=["wima:window=100"])
    monkeypatch.setattr("wima.runs.build.check_plan", lambda *_: None)  # it would refuse to start
    path = small_disk / "run"
    with pytest.raises(RunError, match="No space left on device"):
        launch(settings, path)
    found, _ = checkpoint.find(Segments(path / FOLDER))
    assert found and found[0].t > 0


def test_a_read_only_folder_is_said_and_nothing_is_lost(small_disk, interrupted, monkeypatch):
    monkeypatch.setattr("wima.runs.build.check_plan", lambda *_: None)
    path = copy_of(interrupted, small_disk / "run")
    if subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=False).returncode:
        pytest.skip("a file system cannot be made read-only here")
    with pytest.raises(RunError, match=r"Cannot write .*Read-only file system"):
        resume(path)
    with pytest.raises(UsageError, match=r"Cannot write .*Read-only file system"):
        launch(settings_of(), small_disk / "other")
    assert [c.t for c in checkpoint.find(Segments(path / FOLDER))[0]] == [10, 5]


def test_a_plan_that_cannot_fit_is_refused_with_the_settings_that_would(tmp_path, monkeypatch):
    monkeypatch.setattr("wima.runs.plan.memory_available", lambda: 1e6)
    with pytest.raises(
        UsageError, match=r"needs .* of memory, but 1.0 MB are free.*window_store=files"
    ):
        launch(settings_of(algorithm="scaffold", averagers=["wima:window=100"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_ends_the_run_with_round_and_quantity(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Diverged, match=r"diverged after \d+ of 24 rounds: round \d+: the norm"):
        launch(settings_of(lr=1e6, diverged=10.0), path)
    assert read_run(path).status["state"] == "diverged"


def test_a_failing_worker_is_replaced_and_nothing_changes(tmp_path):
    settings = settings_of(engine="processes", workers=2, rounds=12)
    launch(settings, tmp_path / "whole")
    path, log = tmp_path / "run", tmp_path / "killed"

    def with_a_murderer():
        def murder():
            me, left = os.getpid(), [2, 5]
            while left:
                time.sleep(0.01)
                with suppress(OSError, IndexError):
                    if (path / "records.jsonl").read_text().count("\n") >= left[0]:
                        victim = Path(f"/proc/{me}/task/{me}/children").read_text().split()[0]
                        os.kill(int(victim), signal.SIGKILL)
                        log.open("a").write(f"{victim}\n")
                        left.pop(0)

        threading.Thread(target=murder, daemon=True).start()
        launch(settings, path)

    assert ends(in_a_fork(with_a_murderer)) == 0
    assert len(set(log.read_text().split())) == 2
    assert outcome(path) == outcome(tmp_path / "whole")


def test_the_command_line_lists_and_resumes_runs(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "runs" / "cut")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "120"}

    def wima(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "wima", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    listed = wima("runs")
    assert listed.returncode == 0 and "cut" in listed.stdout
    assert "interrupted" in listed.stdout and "11/12" in listed.stdout
    done = wima("resume", "runs/cut")
    assert done.returncode == 0 and "Goes on after 10 of 12 rounds" in done.stdout
    assert outcome(path) == outcome(interrupted / "whole")
    assert "done" in wima("runs").stdout
    again = wima("resume", "runs/cut")
    assert again.returncode == 2 and "nothing to resume" in again.stderr
    assert wima("resume", "nowhere").returncode == 2


def test_a_client_that_kills_its_workers_ends_the_run_with_a_checkpoint(tmp_path):
    settings, path = settings_of(engine="processes", workers=2, rounds=12), tmp_path / "run"
    told = tmp_path / "error"

    def deadly():
        from wima.engine.processes import Processes

        original, parent = Processes._send, os.getpid()

        def send(self, child, job):
            original(self, child, job)
            if getattr(job, "problem", None) is not None and job.problem.t == 6:
                os.kill(child.process.pid, signal.SIGKILL)

        Processes._send = send
        try:
            launch(settings, path)
        except RunError as error:
            told.write_text(str(error))
            raise
        finally:
            assert parent == os.getpid()

    assert ends(in_a_fork(deadly)) == 1
    assert "killed by signal 9. That makes 3 workers" in told.read_text()
    assert "round 6, client" in told.read_text()
    (found, *_), wrong = checkpoint.find(Segments(path / FOLDER))
    assert found.t == 6 and not wrong and read_run(path).status["state"] == "failed"
