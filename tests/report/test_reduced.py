"""examples/results/reduce.py leaves what reports are made of."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import wima
from tests.helpers.paths import ROOT
from wima.runs.launch import launch
from wima.runs.run import is_intact, read_run
from wima.runs.settings import load_settings

RUN = ["rounds=60", "eval_every=6", "eval_last=3", "engine=serial", "averagers=wima:window=auto"]
MORE = ["calibration=true", "client_test=0.2", "client_eval_every=20", "finetune=sgd:steps=1"]


def test_reduced_records_make_the_same_report(tmp_path, monkeypatch, cli, no_figures):
    def report() -> dict[str, str]:
        """Its texts, without the time at which they were made."""
        assert cli("report", "runs", "--out", "report", "--target", "0.3", "--force")[0] == 0
        files = [p for p in Path("report").rglob("*") if p.suffix in (".md", ".csv", ".tex")]
        return {path.name: re.sub("Made by.*", "", path.read_text("utf-8")) for path in files}

    monkeypatch.chdir(tmp_path)
    folders = {Path("runs/measured"): [*RUN, *MORE], Path("runs/plain"): RUN}
    for folder, overrides in folders.items():
        launch(load_settings("digits", overrides), folder)
    before, full = report(), wima.read_run("runs/measured").windows["wima-auto"]
    assert "MB" in before["report.md"] and "Calibration" in before["report.md"]
    reduce = runpy.run_path(str(ROOT / "examples" / "results" / "reduce.py"))["reduce"]
    for folder in folders:
        reduce(folder)
        assert is_intact(read_run(folder))
        rounds = [record.t for record in wima.read_run(folder).records]
        assert {1, *range(6, 61, 6), 58, 59, 60} <= set(rounds) and len(rounds) < 60
    assert report() == before
    rounds, windows = wima.read_run("runs/measured").windows["wima-auto"]
    drawn = np.exp(np.interp(full[0], rounds, np.log(windows)))
    assert drawn == pytest.approx(full[1], rel=0.031)
