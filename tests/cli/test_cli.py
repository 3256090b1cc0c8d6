"""The command line: what it refuses, what it lists, and what it shows while it runs."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

import wima
from tests.helpers.commands import environment, shell, start
from wima.runs.run import read_run

QUICK = ("clients=20", "clients_per_round=2", "rounds=3")


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def own_data(**changes) -> dict[str, np.ndarray]:
    """A small data set of three clients and two classes; None leaves an array out."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 4)), np.arange(12) % 2
    arrays = {"x": x, "y": y, "client": np.arange(12) % 3, "x_test": x[:4], "y_test": y[:4]}
    return {name: a for name, a in {**arrays, **changes}.items() if a is not None}


def assert_refused(cli, folder: Path, arguments: list[str], words: list[str]) -> None:
    before = files(folder)
    code, out, err = cli(*arguments)
    assert code == 2
    assert "Error: " in err and "Traceback" not in out + err
    assert [word for word in words if word not in err] == []
    assert files(folder) == before


def test_an_output_folder_that_exists_is_refused(cli, tmp_path):
    (tmp_path / "mine").mkdir()
    assert_refused(cli, tmp_path, ["run", "digits", "--out", "mine"], ["mine already exists"])


@pytest.mark.parametrize("out", ["note.txt/run", "/proc/wima-run", "/proc/a/b", "x" * 300])
def test_an_output_folder_that_cannot_be_made_is_refused(cli, tmp_path, out):
    (tmp_path / "note.txt").write_text("mine")
    words = [f"Cannot write {out}"]
    assert_refused(cli, tmp_path, ["run", "digits", *QUICK, "--out", out], words)
    assert (tmp_path / "note.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = = 3", ["bad.toml is not valid TOML", "line 1"]),
        ("lerning_rate = 3", ["Unknown setting 'lerning_rate'", "did you mean 'lr'?"]),
        ("nonsensical = 3", ["Unknown setting 'nonsensical'", "Known: ", " lr,"]),
        ("[algorithm]\nmu = 1", ["algorithm must be a name", "got {'mu': 1}"]),
        ('algorithm = "fedavg:mu"', ["algorithm", "expected key=value", "got 'mu'"]),
    ],
)
def test_a_settings_file_with_a_mistake_is_refused(cli, tmp_path, text, words):
    (tmp_path / "bad.toml").write_text(text)
    assert_refused(cli, tmp_path, ["run", "bad.toml"], words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_clients": np.array(4)}, ["client 3 has no examples", "every client needs"]),
        ({"classes": np.array(1)}, ["labels in 0..0", "got 1"]),
        ({"y": np.arange(12) % 2 - 1}, ["labels in 0..", "got -1 at index 0"]),
        ({"y": np.arange(11) % 2}, ["one row per example", "(12, 4)", "(11,)"]),
        ({"client": None}, ["missing client", "expected arrays x, y, client"]),
        ({"x_test": np.ones((4, 5))}, ["same shape", "x (4,)", "x_test (5,)"]),
    ],
)
def test_own_data_with_a_mistake_is_refused(cli, tmp_path, changes, words):
    np.savez(tmp_path / "my.npz", **own_data(**changes))
    arguments = ["run", "digits", "data=my.npz", *QUICK[1:]]
    assert_refused(cli, tmp_path, arguments, ["my.npz: ", *words])


def test_own_data_that_is_missing_or_no_archive_is_refused(cli, tmp_path):
    (tmp_path / "text.npz").write_text("x, y\n")
    assert_refused(cli, tmp_path, ["run", "digits", "data=text.npz"], ["text.npz", "zip archive"])
    assert_refused(cli, tmp_path, ["run", "digits", "data=none.npz"], ["none.npz", "no such file"])


def test_own_data_run_and_give_a_model_of_their_shape(cli, tmp_path):
    np.savez(tmp_path / "my.npz", **own_data())
    code, out, err = cli("run", "digits", "data=my.npz", *QUICK[1:], "--out", "r")
    assert (code, err) == (0, "")
    assert "round 3/3" in out
    records = [*read_run(tmp_path / "r").lines()]
    assert {client for record in records for client in record["cohort"]} <= {0, 1, 2}


def test_the_picture_of_own_data_tells_their_number_of_clients(cli, tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(Axes, "set_title", lambda self, title: titles.append(title))
    np.savez(tmp_path / "my.npz", **own_data())
    cli("run", "digits", "data=my.npz", *QUICK[1:], "--out", "r")
    assert len(titles) == 1 and "2 of 3 clients" in titles[0]


def test_dotted_overrides_change_one_hyper_parameter(cli, tmp_path):
    (tmp_path / "my.toml").write_text('server = "sgd:lr=0.5"\n[algorithm]\nname = "fedavg"\n')
    code, _, err = cli("run", "my.toml", *QUICK, "server.momentum=0.9", "--out", "r")
    assert (code, err) == (0, "")
    settings = read_run(tmp_path / "r").settings
    assert settings.server.parameters == {"lr": 0.5, "momentum": 0.9}
    assert settings.algorithm.name == "fedavg"


def test_a_run_without_evaluations_ends_well(cli, tmp_path):
    code, _, err = cli("run", "digits", *QUICK, "eval_every=0", "--out", "r")
    assert (code, err) == (0, "")
    assert all(record["metrics"] == {} for record in read_run(tmp_path / "r").lines())


def test_the_same_settings_without_out_are_refused_the_second_time(cli, tmp_path):
    code, _, err = cli("run", "digits", *QUICK)
    assert (code, err) == (0, "")
    (made,) = (tmp_path / "runs").iterdir()
    arguments = ["run", "digits", *QUICK, "engine=reference"]  # the engine is no other run
    assert_refused(cli, tmp_path, arguments, [made.name, "already exists", "--out"])


def test_output_that_is_no_terminal_is_plain_lines(cli):
    code, out, _ = cli("run", "digits", *QUICK, "window=2", "--out", "r")
    lines = [line for line in out.splitlines() if line.startswith("round ")]
    assert code == 0 and "\x1b" not in out
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    for line in lines:
        assert "plain " in line and "wima2 " in line and " % " in line and "rounds/s" in line


def test_a_terminal_shows_a_live_bar(tmp_path):
    ours, theirs = pty.openpty()
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    around = environment(TERM="xterm", COLUMNS="100")
    arguments = ("run", "digits", *QUICK, "--out", "r")
    with start(*arguments, cwd=tmp_path, env=around, **terminal) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # Linux: the other end is closed
            pass
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "\x1b[" in text and "━" in text
    assert "round 3/3" in text and "rounds/s" in text
    assert "s left" not in text  # no plain lines besides the bar


def test_no_arguments_print_the_help(cli):
    _, out, err = cli()
    assert "Usage: " in out + err and "demo" in out + err and "run" in out + err


def test_help_names_the_commands(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert [command for command in ("demo", "run", "list") if f"\n  {command} " not in out] == []


def test_version_is_the_packages_own(tmp_path):
    done = shell("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wima {wima.__version__}\n", "")


def test_a_mistake_in_a_shell_is_one_line_on_standard_error(tmp_path):
    done = shell("run", "digits", "window=0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    expected = "a positive integer, a share of the rounds in (0, 1) or 'auto'"
    assert done.stderr == f"Error: WIMA.window must be {expected}, got 0.\n"
    assert files(tmp_path) == []


def test_list_shows_every_kind(cli):
    code, out, _ = cli("list")
    headings = [line for line in out.splitlines() if line.endswith(":") and line[0] != " "]
    assert code == 0
    assert {"algorithms:", "averagers:", "servers:", "data:", "models:", "presets:"} < {*headings}


def test_list_of_one_kind_shows_names_and_hyper_parameters(cli):
    _, algorithms, _ = cli("list", "algorithms")
    _, averagers, _ = cli("list", "averagers")
    _, servers, _ = cli("list", "servers")
    assert "fedavg" in [line.split()[0] for line in algorithms.splitlines()]
    assert "wima " in averagers and f"window={wima.WIMA().window}" in averagers
    assert "sgd " in servers and f"momentum={wima.SGD().momentum}" in servers


def test_list_of_an_unknown_kind_is_refused(cli, tmp_path):
    assert_refused(cli, tmp_path, ["list", "nonsense"], ["'nonsense'", "Known: algorithms"])
