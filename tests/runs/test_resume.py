"""What a run is resumed from, who may do that, and what is refused."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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
from wima.runs import launch as launching
from wima.runs.folder import read_run
from wima.runs.launch import FOLDER, launch, resume
from wima.storage import manifests
from wima.storage.lock import Lock
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
        assert f"Goes on after {after} of 12 rounds" in capsys.readouterr().out
        assert outcome(path) == outcome(interrupted / "whole")


@pytest.mark.parametrize("damage", ["no records", "a segment of both checkpoints"])
def test_a_run_that_must_start_again_comes_to_its_end(damage, tmp_path, capsys):
    settings = settings_of(algorithm="scaffold", rounds=30, checkpoint_every=4, **FILES)
    launch(settings, tmp_path / "whole")
    killed_after(29, settings, tmp_path / "run")
    path = tmp_path / "run"
    if damage == "no records":
        (path / "records.jsonl").write_text("")
    else:
        newest, older = (c.content for c in manifests.find(Segments(path / FOLDER))[0])
        shared = set(manifests.segments_of(newest)) & set(manifests.segments_of(older))
        (path / FOLDER / sorted(shared)[0]).write_bytes(b"damaged")
    resume(path)
    assert "Goes on after 0 of 30 rounds" in capsys.readouterr().out
    assert outcome(path) == outcome(tmp_path / "whole")


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
    assert code == 0 and "Goes on after 10 of 12 rounds" in out
    assert outcome(path) == outcome(interrupted / "whole")
    assert "done" in cli("runs")[1]
    code, _, err = cli("resume", "runs/cut")
    assert code == 2 and "nothing to resume" in err
    assert cli("resume", "nowhere")[0] == 2
