"""The scripts behind notes in docs/results.md."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest

import wima
from tests.helpers.fedjax_files import femnist_folder, writer
from tests.helpers.paths import ROOT
from wima.data.manage import import_data
from wima.runs.launch import launch
from wima.runs.settings import load_settings

SCRIPTS = ROOT / "examples" / "results"
EMNIST = [402_953, 220_304, 190_998]  # digits, capitals, small letters


def lengths(printed: str, name: str) -> list[list[float]]:
    """The printed rows of that name."""
    return [[float(x) for x in row.split()] for row in re.findall(rf"{name} +([\d. ]+)", printed)]


def test_a_control_variate_fits_while_models_hardly_move(capsys):
    main = runpy.run_path(str(SCRIPTS / "control_variates.py"))["main"]
    main("digits", "lr=1e-6", "batch_size=full", "rounds=4", "eval_every=2")
    printed = capsys.readouterr().out
    gradients, rests = lengths(printed, r"\|g\|"), lengths(printed, r"\|g - c_i\|")
    steps = load_settings("digits", []).epochs
    assert re.findall(r"round +(\d+)", printed) == ["2", "4"]
    assert [len(row) for row in gradients + rests] == [steps] * 4
    assert all(x > 1 for row in gradients for x in row)
    assert all(x < 0.01 for row in rests for x in row)


def test_accuracies_of_groups_add_up_to_the_recorded_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    writers = {name: writer(40, seed) for seed, name in enumerate(("ann", "bob"))}
    import_data("femnist", femnist_folder(tmp_path / "files", writers))
    options = ["model=mlp", "rounds=20", "clients_per_round=2", "engine=serial", "window=2"]
    launch(load_settings("femnist", options), tmp_path / "run")
    capsys.readouterr()
    runpy.run_path(str(SCRIPTS / "femnist_groups.py"))["main"](tmp_path / "run")
    head, *groups, everything, weighted = capsys.readouterr().out.splitlines()
    recorded = wima.read_run(tmp_path / "run").records[-1].metrics
    assert head.split() == ["images", *recorded]
    counts, *columns = zip(*(map(float, row.split()[-3:]) for row in groups), strict=True)
    for column, mean, shares, metrics in zip(
        columns, everything.split()[2:], weighted.split()[4:], recorded.values(), strict=True
    ):
        assert len(set(column)) == 3  # groups differ, so their weights matter
        assert float(mean) == pytest.approx(100 * metrics["accuracy"], abs=0.006)
        assert float(mean) == pytest.approx(np.average(column, weights=counts), abs=0.011)
        assert float(shares) == pytest.approx(np.average(column, weights=EMNIST), abs=0.011)
