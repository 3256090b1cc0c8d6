"""Disks that are full or read-only, and plans that cannot fit: said, and nothing is lost."""

from __future__ import annotations

import resource
import signal
import subprocess

import pytest

from tests.helpers.interrupted import after_round, copy_of, ends, in_a_fork, outcome, settings_of
from wima.core.errors import RunError, UsageError
from wima.runs.folder import FOLDER
from wima.runs.launch import launch, resume
from wima.runs.run import read_run
from wima.storage import manifests
from wima.storage.segments import Segments


def test_a_file_size_limit_ends_the_run_with_the_older_checkpoint_intact(tmp_path):
    settings, path = settings_of(algorithm="scaffold"), tmp_path / "run"

    def no_more_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    def limited():
        after_round(10, no_more_room)
        try:
            launch(settings, path)
        except RunError as error:
            (tmp_path / "error").write_text(str(error))
            raise

    assert ends(in_a_fork(limited)) == 1
    assert "Cannot write" in (tmp_path / "error").read_text()
    found, _ = manifests.find(Segments(path / FOLDER))
    assert found[0].t == 8 and read_run(path).status["state"] == "failed"
    resume(path)
    launch(settings, tmp_path / "whole")
    assert outcome(path) == outcome(tmp_path / "whole")


def test_a_full_disk_ends_the_run_with_the_older_checkpoint_intact(small_disk, monkeypatch):
    settings = settings_of(algorithm="scaffold", rounds=300, averagers=["wima:window=100"])
    monkeypatch.setattr("wima.runs.build.check_plan", lambda *_: None)  # it would refuse to start
    path = small_disk / "run"
    with pytest.raises(RunError, match="No space left on device"):
        launch(settings, path)
    found, _ = manifests.find(Segments(path / FOLDER))
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
    assert [c.t for c in manifests.find(Segments(path / FOLDER))[0]] == [10, 5]


def test_a_plan_that_cannot_fit_is_refused_with_the_settings_that_would(tmp_path, monkeypatch):
    monkeypatch.setattr("wima.runs.build.memory_available", lambda: 1e6)
    with pytest.raises(
        UsageError, match=r"needs .* of memory, but only 1.0 MB is free.*window_store=files"
    ):
        launch(settings_of(algorithm="scaffold", averagers=["wima:window=100"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
