"""The recorded command of a run is one that repeats it."""

from __future__ import annotations

import shlex
import sys

import pytest

from wima.core.text import typed_command
from wima.experiments.sheet import read_sheet
from wima.runs.run import read_run
from wima.runs.settings import load_settings


def test_a_sweep_records_commands_that_repeat_it_and_its_runs(cli, tmp_path):
    words = ["sweep", "digits", "rounds=1", "clients_per_round=2", "--out", "my runs"]
    assert cli(*words)[0] == 0
    folder = tmp_path / "my runs"
    sheet = read_sheet(folder / "sweep.sheet.json")
    assert shlex.split(sheet.command) == ["wima", *words]
    run = read_run(folder / sheet.cells[0].run)
    program, command, source = run.environment["command"]
    assert (program, command) == ("wima", "run")
    assert load_settings(source, []) == run.settings  # with the engine that auto chose


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/usr/bin/wima", ["wima"]),
        ("/site-packages/wima/__main__.py", ["wima"]),
        ("/opt/benchmarks/__main__.py", ["python", "-m", "benchmarks"]),
        ("mine.py", ["mine.py"]),
    ],
)
def test_a_typed_command_is_shown_without_the_place_of_the_program(monkeypatch, program, shown):
    monkeypatch.setattr(sys, "argv", [program, "run", "digits"])
    assert typed_command() == [*shown, "run", "digits"]
