"""Windows that vary are in the records, and are read and shown with the curves."""

from __future__ import annotations

import json
import tracemalloc
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.helpers.reports import curves
from tests.helpers.run_folders import write_run
from wima.core.errors import UsageError
from wima.runs.launch import ProgressDisplay
from wima.runs.record import RECORDS, Curves
from wima.runs.run import Run, read_run
from wima.runs.settings import load_settings, presets
from wima.simulation.simulate import Record

AUTO, QUICK = "wima-auto", ["clients=20", "clients_per_round=2", "rounds=6", "engine=serial"]


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / RECORDS).read_text().splitlines()]


def test_a_run_has_the_windows_of_its_records_in_every_round(cli, tmp_path):
    code, out, err = cli("run", "digits", *QUICK, "window=2,auto", "eval_every=3", "--out", "r")
    assert code == 0, err
    lines = lines_of(tmp_path / "r")
    rounds, counts = read_run(tmp_path / "r").windows[AUTO]
    assert list(rounds) == list(range(1, 7))
    assert list(counts) == [line["windows"][AUTO] for line in lines]
    assert all(1 <= count <= t for t, count in zip(rounds, counts, strict=True))
    assert f"{AUTO} (W {counts[-1]}) " in out and "wima2 (W" not in out


def test_a_run_without_windows_that_vary_has_none(tmp_path):
    write_run(tmp_path / "run", {"rounds": 60}, curves(0))
    assert read_run(tmp_path / "run").windows == {}


@pytest.mark.parametrize("window", [0, 3, -1, 1.0, True, None, "2", [1]])
def test_a_window_that_cannot_be_is_refused_with_its_line(tmp_path, window):
    path = write_run(tmp_path / "run", {"rounds": 60}, curves(0), windows={AUTO: [1] * 60})
    lines = lines_of(path)
    lines[1]["windows"][AUTO] = window  # in round 2
    (path / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match="damaged in line 2"):
        _ = read_run(path).windows


@pytest.mark.parametrize("windows", [None, 3, [4]])
def test_windows_that_are_no_table_are_refused(tmp_path, windows):
    path = write_run(tmp_path / "run", {"rounds": 60}, curves(0))
    line = {**lines_of(path)[0], "windows": windows}
    (path / RECORDS).write_text(json.dumps(line) + "\n")
    with pytest.raises(UsageError, match="damaged in line 1"):
        _ = read_run(path).models


def test_windows_take_sixteen_bytes_a_round():
    rounds = 20_000
    records = ({"t": t, "metrics": {}, "windows": {AUTO: t}} for t in range(1, rounds + 1))
    tracemalloc.start()
    try:
        found = Curves.of(records)
        taken, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.windows[AUTO][0]) == rounds
    assert taken < 1.3 * 16 * rounds  # arrays grow ahead by an eighth
    assert most < 2.5 * 16 * rounds


def test_records_are_read_once_for_curves_and_windows(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", {"rounds": 60}, curves(0), windows={AUTO: [1] * 60})
    passes, parsed = [], Run.lines
    monkeypatch.setattr(Run, "lines", lambda run: passes.append(run) or parsed(run))
    run = read_run(path)
    assert run.models and run.windows and run.curve("plain", "accuracy")
    assert len(passes) == 1


def test_progress_shows_the_window_where_it_varies():
    metrics = {"plain": {"accuracy": 0.5}, AUTO: {"accuracy": 0.945}}
    shown = StringIO()
    with ProgressDisplay(1, console=Console(file=shown, width=200)) as progress:
        progress.update(Record(1, [0], 0.1, metrics, 1.0, windows={AUTO: 41}))
    assert f"plain 50.0 %  {AUTO} (W 41) 94.5 %" in shown.getvalue()


@pytest.mark.parametrize("name", presets())
def test_a_preset_has_a_fixed_window_and_the_one_that_chooses_itself(name):
    windows = [choice.parameters["window"] for choice in load_settings(name, []).averagers]
    assert len(windows) == 2 and isinstance(windows[0], int) and windows[1] == "auto"
