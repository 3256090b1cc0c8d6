"""The recorded command of a run is one that repeats it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from wima.core.text import typed_command
from wima.experiments.definition import experiments, scales
from wima.experiments.expand import expand
from wima.experiments.sheet import read_sheet
from wima.runs.folder import read_run
from wima.runs.identity import run_command
from wima.runs.settings import Settings, load_settings

FOLDER = Path("runs/mine")


def read_back(words: list[str]) -> Settings:
    """The settings of a command that went through a shell."""
    program, command, source, *overrides = shlex.split(shlex.join(words))
    assert (program, command) == ("wima", "run")
    return load_settings(source, overrides)


@pytest.mark.parametrize(("name", "scale"), [("sota", "cpu"), ("swa", "paper"), ("parts", "smoke")])
def test_every_run_of_the_paper_has_a_command_that_reads_back_to_its_settings(name, scale):
    _, jobs = expand(name, experiments()[name], scale, scales()[scale], [3], "")
    for job in jobs[::5]:
        words = run_command(job.settings, FOLDER)
        again = read_back(words)
        assert (again, again.run_id) == (job.settings, job.settings.run_id)
        assert not words[2].endswith(".toml")


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["exclude=true", "batch_size=full", "alpha=iid"],
        ["averagers=[]", "trackers=tensorboard,mlflow"],
        ["averagers=wima:window=5:part=classifier,ema:decay=1e-05"],
        ['split="a, b:c=1.json"', "data=my data.npz"],
        ['split="true"', "seed=3"],
    ],
)
def test_settings_of_all_kinds_read_back(changes):
    settings = load_settings("digits", changes)
    words = run_command(settings, FOLDER)
    assert words[:3] == ["wima", "run", "digits"]
    assert read_back(words).to_toml() == settings.to_toml()


def test_the_nearest_preset_is_named_and_only_what_differs():
    settings = load_settings("femnist", ["lr=0.05"])
    assert run_command(settings, FOLDER) == ["wima", "run", "femnist", "lr=0.05"]


def test_settings_that_no_command_can_say_are_those_of_the_file_in_the_folder():
    settings = load_settings("digits", []).model_copy(update={"split": "\ud800"})
    assert run_command(settings, FOLDER) == ["wima", "run", str(FOLDER / "settings.toml")]


def test_a_sweep_records_commands_that_repeat_it_and_its_runs(cli, tmp_path):
    words = ["sweep", "digits", "rounds=1", "clients_per_round=2", "--out", "my runs"]
    assert cli(*words)[0] == 0
    folder = tmp_path / "my runs"
    sheet = read_sheet(folder / "sweep.sheet.json")
    assert shlex.split(sheet.command) == ["wima", *words]
    run = read_run(folder / sheet.cells[0].run)
    assert read_back(run.environment["command"]) == run.settings  # with the engine that auto chose


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
