"""Every `wima` command that the README and the pages print can be typed as it is printed.

Those on digits and on files that can be made up are run, with few rounds; of the others, the
arguments and settings are checked.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import torch
import typer.main
from safetensors.torch import save_file

from tests.helpers.documents import commands, files
from wima.cli.main import app
from wima.runs.launch import launch
from wima.runs.settings import change_settings, load_settings

SHORT = ["rounds=2", "clients_per_round=2", "engine=serial"]
OWN = """from dataclasses import dataclass
import wima

@dataclass(frozen=True, kw_only=True)
class FedPull(wima.FedAvg):
    gain: float = 1.0

MyAlgorithm = FedPull
"""
OWN_MODULES = ("my_file", "fedpull", "my_package", "my_package.fedpull")
ELSEWHERE = ("trackers=", "--slurm", "flower")  # packages and programs that may be missing


def parsed(words: list[str]) -> dict[str, object]:
    """The arguments that a command would get; nothing is run."""
    command: click.Command = typer.main.get_command(app)
    context, rest = None, list(words)
    while isinstance(command, click.Group):
        context = click.Context(command, context, command.name)
        _, inner, rest = command.resolve_command(context, rest)
        assert inner is not None
        command = inner
    return command.make_context(command.name, rest, context).params


@pytest.fixture(scope="module")
def made_up(tmp_path_factory) -> Path:
    """What the pages speak of: settings, data, checkpoints with a script, a run with snapshots."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "my-settings.toml").write_text('data = "digits"\nlr = 0.05\n')
    x, y = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) % 2
    arrays = {"x": x, "y": y, "client": np.arange(12) % 3, "x_test": x, "y_test": y}
    np.savez(folder / "my-data.npz", **arrays)
    (folder / "run").mkdir()
    for step in (1, 2, 3):
        save_file({"w": torch.full((3,), float(step))}, folder / "run" / f"step_{step}.safetensors")
        torch.save({"w": torch.full((3,), float(step))}, folder / "run" / f"step_{step}.pt")
    (folder / "evaluate.py").write_text("def evaluate(path):\n    return 0.5\n\nprint(0.5)\n")
    (folder / "my_package").mkdir()
    for name, code in files().items():
        (folder / name).write_text(code)
    for file in ("my_file.py", "fedpull.py", "my_package/fedpull.py"):
        (folder / file).write_text(OWN)
    (folder / "runs" / "tune").mkdir(parents=True)
    (folder / "runs" / "tune" / "best.toml").write_text('data = "digits"\nlr = 0.05\n')
    quick = ["rounds=150", "clients_per_round=1", "eval_every=25", "eval_last=1", "snapshots=25"]
    launch(load_settings("digits", [*quick, "engine=serial"]), folder / "runs" / "mine")
    return folder


@pytest.fixture
def folder(made_up, tmp_path, monkeypatch) -> Iterator[Path]:
    shutil.copytree(made_up, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setattr("wima.runs.summary.draw_curves", lambda *_: None)  # half of the time
    monkeypatch.setattr("sys.path", [*sys.path])
    yield tmp_path
    for name in (*OWN_MODULES, *(file.removesuffix(".py") for file in files())):
        sys.modules.pop(name, None)


def shortened(words: list[str]) -> list[str] | None:
    """The words of a command that can be run here, with little to do; None of any other one."""
    command, *rest = words
    if any(word.startswith(ELSEWHERE) for word in words):
        return None
    if command in ("list", "runs") or words in (["paper"], ["data", "list"]):
        return words
    if command == "run":
        here = rest[0] == "digits" or rest[0].endswith(".toml")
        return [*words, *SHORT] if here and "--out" not in words else None
    if command in ("paper", "sweep") and "--watch" not in words:
        return words if "--dry-run" in words else [*words, "--dry-run"]
    paths = [word for word in rest if "/" in word and "{}" not in word]
    if not paths or not all(list(Path().glob(path)) for path in paths) or "--at" in words:
        return None
    if command == "advise":
        few = ["--windows", "50" if paths[0].startswith("runs") else "2", "--decays", ""]
        return [*words, *few, "--ends", "1"]
    return words if command in ("average", "window", "report") else None


@pytest.mark.parametrize("command", commands())
def test_a_printed_command_works(cli, folder, command):
    words = shlex.split(command)
    arguments = parsed(words)
    if (shorter := shortened(words)) is not None:
        code, out, err = cli(*shorter)
        assert (code, err) == (0, "") and out
    elif words[0] == "resume":
        change_settings(load_settings("digits", []), arguments["overrides"] or [])
    elif "source" in arguments:
        load_settings(str(arguments["source"]), arguments["overrides"] or [])


def test_commands_are_found_without_their_comments():
    found = commands()
    assert {"runs", "paper", "run digits window=auto"} < set(found)
    assert not [command for command in found if "#" in command or "\\" in command]
