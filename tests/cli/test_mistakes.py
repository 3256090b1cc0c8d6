"""Wrong commands: exit code, an empty standard output, and a message that says what to do."""

from __future__ import annotations

import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from wima.runs.launch import launch
from wima.runs.settings import load_settings

MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run that is done."""
    path = tmp_path_factory.mktemp("mistakes") / "done"
    launch(load_settings("digits", ["rounds=1", "clients=10", "clients_per_round=1"]), path)
    return path


@pytest.fixture
def folder(tmp_path, finished) -> Path:
    """A folder with a run and a text."""
    shutil.copytree(finished, tmp_path / "runs" / "done")
    (tmp_path / "note.txt").write_text("no checkpoint")
    return tmp_path


@pytest.mark.parametrize("command", MISTAKES)
def test_a_wrong_command_says_what_is_wrong_and_writes_nothing(cli, folder, command, monkeypatch):
    if command.startswith("data verify"):  # no data in the cache
        monkeypatch.setenv("WIMA_DATA", str(folder.parent / "cache"))
    before = sorted(folder.rglob("*"))
    code, out, err = cli(*shlex.split(command))
    assert (code, out) == (2, "")
    assert "Error: " in err and "Traceback" not in err
    assert [words for words in MISTAKES[command] if words not in err] == []
    assert err.lower().count("did you mean") <= 1
    assert sorted(folder.rglob("*")) == before


def test_a_run_that_fails_ends_with_1(cli, folder):
    code, _, err = cli("run", "digits", "lr=1e30", "rounds=3", "clients=10", "clients_per_round=1")
    assert code == 1
    assert "Error: " in err and "diverged" in err and "Traceback" not in err


def test_all_wrong_settings_are_named_at_once(cli, folder):
    wrong = {
        "rounds=abc": "rounds must be an integer, got 'abc'.",
        "lr=-1": "lr must be a positive number, got -1.0.",
        "learning_rate=3": "Unknown setting 'learning_rate'; did you mean 'lr'?",
        "epochs=0": "epochs must be a positive integer, got 0.",
        "dropout=2": "dropout must be a number in [0, 1], got 2.0.",
        "window=0": "got 0.",
        "algorithm=fedavgg": "Unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        "engine=seriel": "Unknown engine 'seriel'; did you mean 'serial'?",
        "server": "Expected key=value without spaces, got 'server'.",
        "seed.x=3": "seed.something cannot be set.",
    }
    code, out, err = cli("run", "digits", *wrong)
    lines = err.removeprefix("Error: ").splitlines()
    assert (code, out) == (2, "") and len(lines) == len(wrong)
    for words in wrong.values():
        assert len([line for line in lines if words in line]) >= 1, words
