"""Crashes after a share of all writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.lab.disk import WAYS, Disk, read_tree, trees
from tests.lab.recorder import recording
from tests.lab.replay import record, replay
from tests.lab.scenarios import SCENARIOS
from wima.storage.files import replace_text

pytestmark = pytest.mark.lab

SHARES = {"run": 0.025, "resume": 0.02, "snapshots": 0.02, "sweep": 0.004}
SHARES |= {"report": 0.03, "averages": 0.1}


@pytest.mark.parametrize("name", ["run", "resume", "snapshots", "averages"])
def test_the_recorder_misses_nothing(name, tmp_path):
    before, operations = record(SCENARIOS[name], tmp_path / "files")
    disk = Disk(before)
    for operation in operations:
        disk.play(operation)
    assert disk.left("killed") == read_tree(tmp_path / "files")


@pytest.mark.parametrize("name", SHARES)
def test_whatever_a_crash_leaves_goes_on_to_the_same_end(name):
    verdicts = Counter(verdict for _, verdict in replay(name, SHARES[name]))
    assert verdicts.total() > 2 and set(verdicts) == {"same"}, verdicts


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    replace_text(tmp_path / "file", "old")
    before = read_tree(tmp_path)
    with recording(tmp_path) as operations:
        replace_text(tmp_path / "file", "new, and longer")
    found = {tree["file"] for _, tree in trees(operations, before)}
    assert found == {b"old", b"new, and longer"}


def test_a_file_that_is_not_synced_is_lost(tmp_path: Path):
    """That the laboratory can tell."""
    with recording(tmp_path) as operations:
        (tmp_path / "draft").write_text("text")
        (tmp_path / "draft").rename(tmp_path / "file")
    disk = Disk()
    for operation in operations:
        disk.play(operation)
    found = [disk.left(way) for way in WAYS]
    assert found == [{"file": b"text"}, {"file": bytes(4)}, {"file": b""}, {}]


def test_a_run_says_done_when_its_models_are_on_the_disk(tmp_path):
    before, operations = record(SCENARIOS["run"], tmp_path / "files")
    models = read_tree(tmp_path / "files" / "run" / "models")
    for _, tree in trees(operations, before):
        if b'"state": "done"' in (tree.get("run/status.json") or b""):
            assert {name: tree[f"run/models/{name}"] for name in models} == models


def test_a_run_folder_has_its_settings_or_is_not_there(tmp_path):
    before, operations = record(SCENARIOS["run"], tmp_path / "files")
    settings = (tmp_path / "files" / "run" / "settings.toml").read_bytes()
    found = [
        tree.get("run/settings.toml") for _, tree in trees(operations, before) if "run" in tree
    ]
    assert len(found) > 100 and set(found) == {settings}
