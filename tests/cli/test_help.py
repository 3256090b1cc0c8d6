"""Help is plain text that describes everything, and shells complete commands and presets."""

from __future__ import annotations

import re

import click
import pytest
import typer.main

from tests.helpers.commands import shell
from wima.cli.main import app
from wima.runs.list import KINDS
from wima.runs.settings import presets


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], click.Command]:
    """All commands, by the words that call them."""
    found: dict[tuple[str, ...], click.Command] = {path: group}
    for name, command in group.commands.items():
        inner = isinstance(command, click.Group)
        found |= commands(command, (*path, name)) if inner else {(*path, name): command}
    return found


GROUP = typer.main.get_command(app)
assert isinstance(GROUP, click.Group)
COMMANDS = commands(GROUP)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_plain_and_describes_every_argument_and_option(cli, path):
    code, out, err = cli(*path, "--help")
    assert (code, err) == (0, "")
    assert "\\" not in out and f"Usage: {' '.join(['wima', *path])} " in out
    flat = " ".join(out.split())
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "hidden", False):  # removed, with an error that says so
            continue
        assert parameter.help and " ".join(parameter.help.split()) in flat, parameter.name
    assert len(re.findall(r"rguments:$", out, re.MULTILINE)) <= 1


def completed(tmp_path, words: str, last: int) -> list[str]:
    """What bash is offered for the word of that number."""
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(last)}
    done = shell(cwd=tmp_path, _WIMA_COMPLETE="complete_bash", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("wima ", [path[0] for path in COMMANDS if len(path) == 1] + ["data", "flower"]),
        ("wima data ", [path[1] for path in COMMANDS if path[:1] == ("data",) and path[1:]]),
        ("wima run ", presets()),
        ("wima run dig", ["digits"]),
        ("wima sweep ", presets()),
        ("wima list ", list(KINDS)),
        ("wima run digits --o", ["--out"]),
    ],
)
def test_bash_is_offered_what_can_follow(tmp_path, words, expected):
    offered = completed(tmp_path, words, len(words.split(" ")) - 1)
    assert set(offered) == set(expected)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_calls_wima(tmp_path, name):
    done = shell(cwd=tmp_path, _WIMA_COMPLETE=f"source_{name}")
    assert done.returncode == 0 and f"_WIMA_COMPLETE=complete_{name}" in done.stdout


def test_completion_can_be_installed_and_shown(tmp_path):
    detection = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    shown = shell("--show-completion", "bash", cwd=tmp_path, **detection)
    assert shown.returncode == 0 and "complete -o default -F _wima_completion wima" in shown.stdout
    done = shell("--install-completion", "bash", cwd=tmp_path, **detection)
    assert done.returncode == 0 and "bash completion installed" in done.stdout
    script = tmp_path / ".bash_completions" / "wima.sh"
    assert shown.stdout.strip() in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
