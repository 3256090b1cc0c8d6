"""What a run is resumed from, who may do that, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings as how, strategies as st

from tests.helpers.interrupted import (
    FILES,
    copy_of,
    ends,
    in_a_fork,
    kill,
    killed_after,
    outcome,
    settings_of,
)
from tests.helpers.waiting import rounds_recorded, wait_for
from wima.core.errors import UsageError
from wima.runs import identity
from wima.runs.build import build
from wima.runs.folder import COPY, FOLDER
from wima.runs.launch import launch, resume
from wima.runs.record import RECORDS
from wima.runs.run import Run, read_run
from wima.simulation.task import data_checksum
from wima.storage import manifests
from wima.storage.files import Lock
from wima.storage.segments import Segments


def own_files(path: Path) -> list[Path]:
    """The files of the newest checkpoint that the one before does not need."""
    newest, older = (
        manifests.read_manifest(p, manifests.FORMAT) for p in manifests.manifests(path / FOLDER)
    )
    names = set(manifests.segments_of(newest)) - set(manifests.segments_of(older))
    return [manifests.manifests(path / FOLDER)[0], *(path / FOLDER / n for n in sorted(names))]


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
    found, wrong = manifests.find(Segments(path / FOLDER))
    assert [c.t for c in found] == [5] and len(wrong) == (
        0 if file.suffix == ".json" and kind == "remove" else 1
    )


def test_a_run_goes_on_from_the_older_checkpoint_or_from_the_start(interrupted, tmp_path, capsys):
    for damaged, after in ((0, 10), (1, 5), (2, 0)):
        path = copy_of(interrupted, tmp_path / "run")
        for manifest in manifests.manifests(path / FOLDER)[:damaged]:
            manifest.write_text("{}")
        resume(path)
        assert f"Resuming after {after} of 12 rounds" in capsys.readouterr().out
        assert outcome(path) == outcome(interrupted / "whole")


def test_buckets_are_resumed(tmp_path, capsys):
    given = ["wima:window=9:buckets=2", "wima:window=100:buckets=3:part=classifier"]
    settings = settings_of(rounds=14, checkpoint_every=5, averagers=given)
    launch(settings, tmp_path / "whole")
    killed_after(13, settings, tmp_path / "run")
    capsys.readouterr()
    resume(tmp_path / "run")
    assert "Resuming after 10 of 14 rounds" in capsys.readouterr().out
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["no records", "a segment of both checkpoints"])
def test_a_run_that_must_start_again_comes_to_its_end(damage, tmp_path, capsys):
    settings = settings_of(algorithm="scaffold", rounds=30, checkpoint_every=4, **FILES)
    launch(settings, tmp_path / "whole")
    killed_after(29, settings, tmp_path / "run")
    path = tmp_path / "run"
    if damage == "no records":
        (path / "records.jsonl").write_text("")
        (path / COPY).unlink()
    else:
        newest, older = (c.content for c in manifests.find(Segments(path / FOLDER))[0])
        shared = set(manifests.segments_of(newest)) & set(manifests.segments_of(older))
        (path / FOLDER / sorted(shared)[0]).write_bytes(b"damaged")
    resume(path)
    assert "Resuming after 0 of 30 rounds" in capsys.readouterr().out
    assert outcome(path) == outcome(tmp_path / "whole")


def test_changed_records_are_replaced_by_their_copy(interrupted, tmp_path, capsys):
    path = copy_of(interrupted, tmp_path / "run")
    change(path / RECORDS, '"lr": 0.05', '"lr": 0.06', line=6)
    resume(path)
    told = capsys.readouterr().out
    assert "records.jsonl is damaged before round 10" in told and "Resuming after 10 of 12" in told
    assert outcome(path) == outcome(interrupted / "whole")


def test_changed_records_without_an_intact_copy_are_not_built_upon(interrupted, tmp_path, capsys):
    path = copy_of(interrupted, tmp_path / "run")
    for file in (RECORDS, COPY):
        change(path / file, '"lr": 0.05', '"lr": 0.06', line=6)
    resume(path)
    assert "Resuming after 5 of 12" in capsys.readouterr().out
    assert outcome(path) == outcome(interrupted / "whole")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_records_that_went_through_an_editor_are_read(newline, interrupted, tmp_path, capsys):
    path = copy_of(interrupted, tmp_path / "run")
    (path / COPY).unlink()
    text = (path / RECORDS).read_text()
    (path / RECORDS).write_text(text, encoding="utf-8-sig", newline=newline)
    assert [*read_run(path).lines()] == [json.loads(line) for line in text.splitlines()]
    resume(path)
    assert "Resuming after 10 of 12" in capsys.readouterr().out
    assert outcome(path) == outcome(interrupted / "whole")


def change(file: Path, before: str, after: str, line: int = 0) -> None:
    """Replace a text in a line of a file."""
    lines = file.read_text().splitlines(keepends=True)
    assert before in lines[line]
    lines[line] = lines[line].replace(before, after)
    file.write_text("".join(lines))


@pytest.mark.parametrize("damage", ["zeros", "no models", "other records"])
def test_a_finished_run_that_is_damaged_is_repaired(damage, interrupted, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(interrupted / "whole", path)
    model = path / "models" / "plain.safetensors"
    if damage == "zeros":  # as a disk leaves a file that was not synced before the power failed
        model.write_bytes(bytes(model.stat().st_size))
    elif damage == "no models":
        shutil.rmtree(path / "models")
    else:
        change(path / RECORDS, '"lr": 0.05', '"lr": 0.06', line=6)
    resume(path)
    assert outcome(path) == outcome(interrupted / "whole")
    with pytest.raises(UsageError, match="is done; there is nothing to resume"):
        resume(path)


@pytest.mark.parametrize(("key", "value"), [("seed", 1), ("lr", 0.06), ("clients_per_round", 2)])
def test_settings_changed_before_the_first_checkpoint_are_refused(key, value, tmp_path):
    path = tmp_path / "run"
    killed_after(2, settings_of(), path)
    text = (path / "settings.toml").read_text()
    other, changed = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
    assert changed == 1
    (path / "settings.toml").write_text(other)
    with pytest.raises(UsageError, match=r"settings.toml was changed.*\n.*or start a new run"):
        resume(path)
    (path / "settings.toml").write_text("# only a remark\n" + text, encoding="utf-8-sig")
    assert resume(path).status["state"] == "done"


@pytest.mark.parametrize("after", [2, 11], ids=["before a checkpoint", "with checkpoints"])
@pytest.mark.parametrize("array", ["x", "y", "client", "x_test"])
def test_other_data_are_refused(after, array, tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype("f4"), draw.integers(0, 3, 60)
    arrays = {"x": x, "y": y, "client": np.arange(60) % 12, "x_test": x[:9], "y_test": y[:9]}
    np.savez(tmp_path / "data.npz", **arrays)
    settings = settings_of(data=str(tmp_path / "data.npz"), clients=None, rounds=12)
    killed_after(after, settings, tmp_path / "run")
    changed = arrays[array].copy()
    changed[5] = changed[5] + 1 if array != "y" else (changed[5] + 1) % 3
    np.savez(tmp_path / "data.npz", **{**arrays, array: changed})
    with pytest.raises(UsageError, match=r"data_checksum: .* then, .* now"):
        resume(tmp_path / "run")
    np.savez(tmp_path / "data.npz", **arrays)
    assert resume(tmp_path / "run").status["state"] == "done"


def test_a_large_array_is_sampled(monkeypatch):
    with build(settings_of()) as simulation:
        whole = data_checksum(simulation.setup.task)
        monkeypatch.setattr("wima.simulation.task.SAMPLE", 1000)
        assert data_checksum(simulation.setup.task) not in (whole, "")
        x = simulation.setup.task.data.x
        sampled = data_checksum(simulation.setup.task)
        x[-1] += 1
        assert data_checksum(simulation.setup.task) != sampled


@pytest.mark.parametrize("fact", ["processor", "instructions"])
def test_another_processor_is_named(interrupted, tmp_path, capsys, fact):
    path = copy_of(interrupted, tmp_path / "run")
    around = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps({**around, fact: "ABACUS"}))
    resume(path)
    assert "started on another processor" in (said := capsys.readouterr().out) and "ABACUS" in said


def test_resume_takes_settings_that_do_not_change_the_result(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "run")
    with pytest.raises(UsageError, match=r"lr cannot be changed .* window_store"):
        resume(path, changes=["lr=0.1"])
    with pytest.raises(UsageError, match="engine cannot be changed"):
        resume(path, changes=["engine=batched"])
    resume(path, changes=["window_store=files", "client_memory_gb=0", "checkpoint_every=1"])
    assert read_run(path).settings.window_store == "files"
    assert outcome(path) == outcome(interrupted / "whole")


def test_an_engine_with_the_same_bytes_can_go_on(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "run")
    before = read_run(path).settings.engine
    after = "reference" if before == "serial" else "serial"
    resume(path, changes=[f"engine={after}"])
    assert read_run(path).settings.engine == after
    assert outcome(path) == outcome(interrupted / "whole")


def test_a_million_records_are_not_read_into_memory_to_go_on(interrupted, tmp_path, monkeypatch):
    path = copy_of(interrupted, tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "lines", lambda self: pytest.fail("records were read"))
        run = resume(path)
        assert run.t == 12
    assert outcome(path) == outcome(interrupted / "whole")


LINKS = ["status.json", "records.jsonl", "times.jsonl", "settings.toml", "environment.json", "lock"]


@pytest.mark.parametrize("name", [*LINKS, "checkpoints", "models", COPY, "checkpoints/ring-1"])
def test_a_run_does_not_write_through_links(name, interrupted, tmp_path):
    path, target = copy_of(interrupted, tmp_path / "run"), tmp_path / "target"
    file = path / name
    if file.exists():
        file.rename(target)
    else:
        target.write_text("precious")
    file.symlink_to(target)
    before = {f: f.read_bytes() for f in (target, *target.glob("*")) if f.is_file()}
    with pytest.raises(UsageError, match=r"is a symbolic link, but a run writes only to its own"):
        resume(path)
    assert {f: f.read_bytes() for f in before} == before


def test_only_what_the_run_wrote_is_removed(interrupted, tmp_path):
    path = copy_of(interrupted, tmp_path / "run")
    mine = [path / FOLDER / name for name in ("best.safetensors", "1.json", ".a.new", "x-1.json")]
    for file in mine:
        file.write_text("mine")
    resume(path)
    assert all(file.read_text() == "mine" for file in mine)


def test_the_engine_that_was_chosen_is_in_the_settings(tmp_path):
    run = launch(settings_of(engine="auto", rounds=12), tmp_path / "run")
    assert run.settings.engine == run.environment["engine"] == "serial"


def test_another_configuration_or_version_is_refused_with_the_difference(
    interrupted, tmp_path, monkeypatch
):
    path = copy_of(interrupted, tmp_path / "run")
    text = (path / "settings.toml").read_text()
    (path / "settings.toml").write_text(text.replace("lr = 0.05", "lr = 0.07"))
    with pytest.raises(UsageError, match=r"lr: 0.05 then, 0.07 now"):
        resume(path)
    (path / "settings.toml").write_text(text)
    around = identity.environment()
    monkeypatch.setattr(identity, "environment", lambda: {**around, "torch": "9.9"})
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
    with pytest.raises(UsageError, match=r"0 of 12 rounds done: `wima resume .*run` resumes it"):
        launch(settings_of(), path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_let_the_round_finish_and_leave_a_checkpoint(number, code, tmp_path):
    settings = settings_of(rounds=10**6, checkpoint_every=0, checkpoint_minutes=60.0)
    path = tmp_path / "run"
    pid = in_a_fork(lambda: launch(settings, path))
    wait_for(lambda: rounds_recorded(path) >= 3, "three rounds")
    os.kill(pid, number)
    assert ends(pid) == code
    run = read_run(path)
    (found,), wrong = manifests.find(Segments(path / FOLDER))
    assert run.status["state"] == "interrupted" and not wrong
    assert found.t == run.status["done"] == len(run.records) > 0


def test_the_command_line_lists_and_resumes_runs(cli, interrupted, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = copy_of(interrupted, tmp_path / "runs" / "cut")
    code, listed, _ = cli("runs")
    assert code == 0 and "cut" in listed
    assert "interrupted" in listed and "11/12" in listed
    code, out, _ = cli("resume", "runs/cut")
    assert code == 0 and "Resuming after 10 of 12 rounds" in out
    assert outcome(path) == outcome(interrupted / "whole")
    assert "done" in cli("runs")[1]
    code, _, err = cli("resume", "runs/cut")
    assert code == 2 and "nothing to resume" in err
    assert cli("resume", "nowhere")[0] == 2
