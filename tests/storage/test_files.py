"""Files and folders are complete or absent, and on the disk before they have their names."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from wima.core.errors import RunError, UsageError
from wima.storage.files import Lock, is_running, new_file, remove_drafts, replace_text, written


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_fails_leaves_the_old_one_and_no_draft(tmp_path):
    replace_text(tmp_path / "a", "old")
    with pytest.raises(TypeError), written(tmp_path / "a") as draft:
        draft.write_text("half") + "not a number"
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_folder_replaces_another_only_if_asked(tmp_path):
    for content in ("first", "second"):
        with written(tmp_path / "f", folder=True, over=True) as draft:
            (draft / "x").write_text(content)
    with (
        pytest.raises(RunError, match="Cannot write"),
        written(tmp_path / "f", folder=True) as draft,
    ):
        (draft / "x").write_text("third")
    assert names(tmp_path) == ["f"] and (tmp_path / "f" / "x").read_text() == "second"


def test_what_is_in_the_way_is_reported_before_anything_is_computed(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write"):  # noqa: SIM117
        with written(tmp_path / "file" / "a", kind=UsageError):
            pytest.fail("the block was entered")
    with pytest.raises(RunError, match="does not exist"), new_file(tmp_path / "no" / "a"):
        pytest.fail("the block was entered")


def test_contents_are_synced_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, Path.rename

    def synced(number):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        fsync(number)

    def renamed(self, target):
        events.append(("rename", Path(target).name))
        return rename(self, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the names of open files are read from /proc")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    with written(tmp_path / "f", folder=True) as draft:
        (draft / "x").write_text("1")
        (draft / "y").write_text("2")
    kinds = [kind for kind, _ in events]
    assert kinds == ["sync", "sync", "sync", "rename", "sync"]
    assert {name for _, name in events[:2]} == {"x", "y"} and events[-1][1] == tmp_path.name


def test_drafts_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".a.0123abcd.new").write_text("half")
    (tmp_path / ".f.0123abcd.old").mkdir()
    (tmp_path / ".mine.new").write_text("a user's")
    remove_drafts(tmp_path)
    assert names(tmp_path) == [".mine.new"]


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    lock = Lock(tmp_path)
    assert is_running(tmp_path)
    with pytest.raises(UsageError, match="Another process is working on"):
        Lock(tmp_path)
    lock.release()
    assert not is_running(tmp_path)
    assert not is_running(tmp_path / "nowhere") and not (tmp_path / "nowhere").exists()


def test_looking_at_a_run_refuses_no_process_its_lock(tmp_path):
    """Two processes look in a tight loop while a third takes the lock, again and again."""
    Lock(tmp_path).release()
    code = "import sys, pathlib; from wima.storage.files import is_running; "
    code += "print('looks', flush=True)\nwhile True: is_running(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    looking = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    try:
        for process in looking:
            assert process.stdout.readline() == b"looks\n"
        for _ in range(200):
            Lock(tmp_path).release()
    finally:
        for process in looking:
            process.kill()
            process.communicate()


def test_looking_at_a_run_changes_nothing_and_disturbs_no_one_who_looks(tmp_path):
    assert not is_running(tmp_path) and names(tmp_path) == []
    lock = Lock(tmp_path)
    (tmp_path / "lock").chmod(0o444)  # the run of another user
    assert is_running(tmp_path)
    lock.release()
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # another process that looks
        assert not is_running(tmp_path)


def test_a_lock_ends_with_its_process(tmp_path):
    code = "import sys, pathlib; from wima.storage.files import Lock; "
    code += "lock = Lock(pathlib.Path(sys.argv[1])); print('held', flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout.readline() == b"held\n" and is_running(tmp_path)
        process.kill()
        process.wait()
        assert not is_running(tmp_path)


def test_a_released_lock_is_not_kept_by_a_forked_process(tmp_path):
    code = """if True:
        import os, pathlib, sys
        from wima.storage.files import Lock, is_running
        lock = Lock(pathlib.Path(sys.argv[1]))
        reader, writer = os.pipe()
        if os.fork():
            lock.release()
            assert not is_running(pathlib.Path(sys.argv[1]))
        else:
            os.close(writer)
            os.read(reader, 1)  # until the parent ends
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT)


def test_runs_can_be_imported_where_there_is_no_fcntl():
    modules = "wima.runs.launch, wima.simulation.engines.processes"
    code = f"import sys; sys.modules['fcntl'] = None; import {modules}"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT)
