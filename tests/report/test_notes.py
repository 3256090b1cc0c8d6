"""What the notes of a table say: windows, differences from presets, seeds, rounds to a target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.paths import ROOT
from tests.helpers.reports import AVERAGE, COLUMN, ROUNDS, curves, data_of, make_sheet
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.experiments.plan import scales
from wima.experiments.sheet import Cell, write_sheet
from wima.report.inputs import gather
from wima.report.notes import differences, notes
from wima.report.write import make_tables, write_report
from wima.runs.settings import load_settings

pytestmark = pytest.mark.usefixtures("no_figures")
CPU = ROOT / "docs" / "results" / "cpu"


def table_of(folder, name: str):
    tables, _ = make_tables(gather([folder / f"{name}.sheet.json"], "accuracy"), Measure())
    return tables[0]


def test_a_table_says_what_differs_from_the_preset_at_its_scale():
    assert differences(table_of(CPU, "sota")).endswith(
        "lr = 0.3 (MIME SGDm on Shakespeare, MIMELite on Shakespeare)."
    )
    for name in ("parts", "participation"):  # fewer clients are in the rows' names
        sentence = "Differs from the preset cifar10 at scale cpu: batch_size = 20."
        assert differences(table_of(CPU, name)) == sentence
    assert differences(table_of(CPU, "window")) == ""


def test_rows_of_results_are_called_by_the_windows_that_were_used():
    windows = [round(scales()["cpu"].windows * paper) for paper in (5, 10, 50, 100, 200)]
    rows = table_of(CPU, "window").sheet.rows
    assert [int(row.split()[2]) for row in rows] == windows
    assert table_of(CPU, "sota").sheet.headings == ["plain", f"WIMA, W = {windows[3]}"]


def test_runs_of_a_preset_say_what_was_changed(tmp_path):
    preset = load_settings("digits", [])
    kept = {"model": "mlp", "lr": preset.lr, "batch_size": preset.batch_size}
    kept |= {"epochs": preset.epochs, "clients_per_round": preset.clients_per_round}
    write_run(tmp_path / "in" / "run", {**kept, "rounds": ROUNDS, "weight_decay": 0.5}, curves(0))
    write_report([tmp_path / "in"], tmp_path / "out")
    expected = f"Differs from the preset digits: rounds = {ROUNDS}; weight_decay = 0.5."
    assert data_of(tmp_path / "out")["tables"][0]["settings"] == [expected]
    write_run(tmp_path / "own" / "run", {"data": "mine.npz", "rounds": ROUNDS}, curves(0))
    write_report([tmp_path / "own"], tmp_path / "other")
    assert data_of(tmp_path / "other")["tables"][0]["settings"] == []


def test_headings_that_name_no_window_are_explained():
    assert "classifier, features, all: W = 20." in notes(table_of(CPU, "parts"))


def test_seeds_have_a_column_only_if_they_differ(tmp_path, report):
    assert "| seeds |" in (report / "tables" / "sota.md").read_text(encoding="utf-8")
    for seed in (0, 1):
        write_run(tmp_path / "in" / f"{seed}", {"rounds": ROUNDS, "seed": seed}, curves(seed))
    write_report([tmp_path / "in"], tmp_path / "out")
    text = (tmp_path / "out" / "tables" / "runs.md").read_text(encoding="utf-8")
    assert "| seeds |" not in text and text.count("2 seeds") == 1


def test_rounds_to_the_target_are_in_markdown(report):
    text = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    _, below = text.split("Rounds to a test accuracy of 65.00 %:")
    lines = [[text.strip() for text in line.split("|")] for line in below.splitlines()]
    rows = {(line[1], line[2]): line[3] for line in lines if len(line) > 3}
    for heading, model in (("plain", "plain"), (AVERAGE, "wima10")):
        seeds = [curves(seed)[model] >= 0.65 for seed in range(3)]
        first = [int(np.argmax(there)) + 1 for there in seeds if there.any()]
        some = "" if len(first) == 3 else f" ({len(first)} of 3 seeds)"
        expected = f"{np.mean(first):.0f}{some}" if first else "never"
        assert rows["FedAvg", heading] == expected


def test_without_a_target_there_is_no_such_table(pool, tmp_path):
    write_report([pool], tmp_path / "out")
    for ending in ("md", "tex"):
        assert "ounds to a test" not in (tmp_path / "out" / "tables" / f"sota.{ending}").read_text()


def test_at_other_scales_the_distance_to_the_paper_has_no_colour(browser, tmp_path):
    for scale in ("cpu", "paper"):
        cell = Cell("FedAvg", COLUMN, 0, "run", {"plain": "plain", "WIMA": "wima10"})
        names = {"rows": ["FedAvg"], "columns": [COLUMN]}
        write_run(tmp_path / scale / "run", {"rounds": ROUNDS}, curves(0))
        write_sheet(make_sheet([cell], scale=scale, **names), tmp_path / scale)
        write_report([tmp_path / scale], tmp_path / f"{scale}-report")
        browser.open(tmp_path / f"{scale}-report" / "index.html")
        kinds = browser.js("[...document.querySelectorAll('.difference')].map((e) => e.className)")
        away = [kind for kind in kinds if "unclear" not in kind]
        assert bool(away) == (scale == "paper")
