"""Commands that compute nothing do not wait for torch: importing it takes two seconds."""

from __future__ import annotations

import json

import pytest

from tests.helpers.commands import printed

CODE = """
import contextlib, io, json, os, sys
from wima.cli.main import main
folder, *sys.argv[1:] = sys.argv[1:]
os.chdir(folder)
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
    main()
heavy = {"torch", "numpy", "scipy", "sklearn", "matplotlib"} & sys.modules.keys()
print(json.dumps([bool(out.getvalue()), sorted(heavy)]))
"""


@pytest.mark.parametrize(
    "command",
    ["--help", "--version", "run --help", "average --help", "list", "list models", "paper", "runs"],
)
def test_a_command_that_computes_nothing_imports_nothing_heavy(tmp_path, command):
    (tmp_path / "runs").mkdir()
    assert json.loads(printed(CODE, str(tmp_path), *command.split())) == [True, []]


def test_a_list_of_runs_imports_nothing_heavy(tmp_path, cli):
    quick = ("rounds=1", "clients=10", "clients_per_round=1")
    assert cli("run", "digits", *quick, "--out", "runs/a")[0] == 0
    assert json.loads(printed(CODE, str(tmp_path), "runs")) == [True, []]


@pytest.mark.parametrize("mistake", ["rounds=abc", "learning_rate=1", "--rounds=10"])
def test_a_wrong_setting_is_found_before_torch_is_imported(tmp_path, mistake):
    found = json.loads(printed(CODE, str(tmp_path), "run", "digits", mistake))
    assert found == [False, []]  # nothing on standard output


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("", "torch numpy"),
        ("wima.WindowAverage, wima.ArrayWindow", "pandas matplotlib scipy typer pooch sklearn"),
        ("wima.FederatedData, wima.average_files", "torch pandas matplotlib scipy typer pooch"),
    ],
)
def test_a_name_imports_only_what_it_needs(code, without):
    heavy = f"import sys, wima\n{code}\nprint([m for m in {without.split()} if m in sys.modules])"
    assert printed(heavy).strip() == "[]"
