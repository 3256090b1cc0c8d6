"""Results beside the paper's: a picture and a table at a glance, then the details by data set."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.helpers.reports import COLUMN, LAST, OTHER, ROUNDS, curves, make_sheet
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.core.statistics import of_independent
from wima.experiments.sheet import Cell, printed, write_sheet
from wima.report.figures import opening_figure
from wima.report.inputs import gather
from wima.report.paper_page import (
    beside_paper,
    draw_opening,
    glance,
    glance_notes,
    opening,
    same_sign,
)
from wima.report.statistics import Interval
from wima.report.write import make_tables, write_report

MODELS = {"plain": "plain", "WIMA": "wima10"}
MILDER = "CIFAR-10 α = 0.05"
DATA = {COLUMN: "cifar10", MILDER: "cifar10", OTHER: "femnist"}


def write_pool(folder: Path, runs: list[tuple], **changes) -> Path:
    """A sheet of (row, column, seed, shift of the average); a shift of None is a diverged run."""
    cells = []
    for number, (row, column, seed, shift) in enumerate(runs):
        own = curves(number)
        settings = {"rounds": ROUNDS, "seed": seed, "data": DATA[column]}
        own["wima10"] = own["plain"] + (shift or 0) + 1e-4 * np.sin(np.arange(ROUNDS))
        state = "diverged" if shift is None else "done"
        write_run(folder / f"run-{number}", settings, own, state)
        cells.append(Cell(row, column, seed, f"run-{number}", MODELS))
    rows, columns = (list(dict.fromkeys(run[part] for run in runs)) for part in (0, 1))
    write_sheet(make_sheet(cells, rows=rows, columns=columns, **changes), folder)
    return folder


def tables_of(*folders: Path) -> list:
    return make_tables(gather(folders, "accuracy"), Measure())[0]


def lines_of(*folders: Path) -> dict[tuple[str, str], list[str]]:
    """Data set and method -> the rest of the line."""
    found = glance(beside_paper(tables_of(*folders))).lines
    assert len({(data, method) for data, method, *_ in found}) == len(found)
    return {(data, method): rest for data, method, *rest in found}


def test_each_method_stands_beside_the_paper_with_its_sign(tmp_path):
    runs = [("FedAvg", COLUMN, 0, 0.02), ("SCAFFOLD", COLUMN, 0, -0.02), ("FedProx", COLUMN, 0, 0)]
    runs += [("FedDyn", COLUMN, 0, 0.02), ("FedACG", COLUMN, 0, None)]
    lines = lines_of(write_pool(tmp_path, runs))
    plain, averaged = (printed("sota", "FedAvg", COLUMN, h).value for h in ("plain", "WIMA"))
    paper, ours, *rest = lines[COLUMN, "FedAvg"]
    assert paper == f"{averaged - plain:+.2f}"
    assert ours.startswith("+2.00 [") and ours.endswith("*†")
    assert rest == ["yes", "1", "smoke, W = 10"]
    assert lines[COLUMN, "SCAFFOLD"][2] == "no" and lines[COLUMN, "FedProx"][2] == "open"
    assert lines[COLUMN, "FedDyn"][0] == "N/A" and lines[COLUMN, "FedDyn"][2] == "-"
    assert lines[COLUMN, "FedACG"][1:4] == ["N/A", "-", "1 of 1 diverged"]


def test_without_an_interval_the_sign_is_open():
    known = Interval(0.01, 0.005, "rounds", 40, 0.01)
    assert same_sign(1.0, known) == "yes" and same_sign(-1.0, known) == "no"
    assert same_sign(1.0, known._replace(half=float("nan"))) == "open"


def test_several_seeds_give_the_interval_over_seeds(tmp_path):
    shifts = [0.02, 0.03, 0.05]
    runs = [("FedAvg", OTHER, seed, shift) for seed, shift in enumerate(shifts)]
    wave = 1e-4 * np.sin(np.arange(ROUNDS))[-LAST:].mean()
    expected = of_independent([shift + wave for shift in shifts])
    ends = [100 * (expected.mean + side * expected.margin()) for side in (-1, 1)]
    _, ours, sign, seeds, _ = lines_of(write_pool(tmp_path, runs))[OTHER, "FedAvg"]
    text = f"{100 * expected.mean:+.2f} [{ends[0]:+.2f}, {ends[1]:+.2f}]".replace("-", "−")
    assert ours.rstrip("†") == text and (sign, seeds) == ("open" if ends[0] < 0 else "yes", "3")


def test_of_several_scales_the_nearest_to_the_papers_is_shown(tmp_path):
    methods = ["FedAvg", "FedProx", "SCAFFOLD"]
    folders = []
    for count, scale in ((3, "cpu"), (2, "resnet8"), (1, "paper")):
        runs = [(method, COLUMN, 0, 0.02) for method in methods[:count]]
        folders.append(write_pool(tmp_path / scale, runs, scale=scale))
    lines = lines_of(*folders)
    used = [lines[COLUMN, method][-1] for method in methods]
    assert used == ["paper, W = 10", "resnet8, W = 10", "cpu, W = 10"]
    told = glance_notes(beside_paper(tables_of(*folders)))
    assert "Methods run at several scales are shown at the scale nearest to the paper's." in told


def test_the_picture_has_a_panel_per_method_with_the_papers_numbers(tmp_path):
    runs = [("FedAvg", OTHER, seed, 0.02) for seed in (0, 1)] + [("FedDyn", OTHER, 0, 0.02)]
    folder = write_pool(tmp_path / "in", runs, scale="paper")
    found = beside_paper(tables_of(folder))
    column, pairs = opening(found)
    first, second = opening_figure(pairs, column, Measure()).axes
    assert (first.get_title(), second.get_title()) == (
        "FedAvg, 2 seeds",
        "FedDyn, 1 seed (paper: N/A)",
    )
    lines = {line.get_label(): line.get_ydata() for line in first.get_lines()}
    mean = 100 * np.mean([curves(number)["plain"] for number in (0, 1)], axis=0)
    assert np.allclose(lines["plain"], mean) and len(first.collections) == 2  # bands
    for heading, label in (("plain", "plain"), ("WIMA", "WIMA, W = 10")):
        assert lines[f"paper: {label}"] == [printed("sota", "FedAvg", OTHER, heading).value]
    assert len(second.get_lines()) == 2 and not second.collections


def test_the_same_runs_give_the_same_picture_and_only_the_papers_scale_has_one(tmp_path):
    runs = [("FedAvg", OTHER, 0, 0.02)]
    found = beside_paper(tables_of(write_pool(tmp_path / "in", runs, scale="paper")))
    drawn = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        drawn.append(folder / draw_opening(found, folder))
    assert drawn[0].name == "sota-femnist.png" and imread(drawn[0]).ndim == 3
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    lost = write_pool(tmp_path / "lost", [("FedDyn", OTHER, 0, None)], scale="paper")
    assert draw_opening(beside_paper(tables_of(lost)), tmp_path)
    cpu = write_pool(tmp_path / "cpu", runs, scale="cpu")
    assert draw_opening(beside_paper(tables_of(cpu)), tmp_path) == ""


NOTES = (
    "First words.\n\n## General\n\nFor all.\n\n## FEMNIST\n\nOn writers.\n\n## Others\n\nMore.\n"
)


@pytest.mark.usefixtures("no_figures")
def test_the_page_reads_from_general_to_particular(tmp_path):
    runs = [("FedAvg", COLUMN, 0, 0.02), ("FedAvg", OTHER, 0, 0.02)]
    folder = write_pool(tmp_path / "in", runs, scale="paper")
    (tmp_path / "notes.md").write_text(NOTES, encoding="utf-8")
    write_report([folder], tmp_path / "out", notes=tmp_path / "notes.md")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    order = ["**Averaging", "](sota-", "## At a glance", "First words.", "For all.", "More."]
    order += ["## How to read the tables", "\n## CIFAR-10\n", "### State", "\n## FEMNIST\n"]
    order += ["| FEMNIST | plain |", "### Notes on FEMNIST", "On writers.", "## Machines"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert (tmp_path / "out" / "sota-cifar-10-0.png").exists()


@pytest.mark.usefixtures("no_figures")
def test_every_split_of_a_data_set_has_a_table_with_the_methods_that_were_run(tmp_path):
    runs = [("FedAvg", COLUMN, 0, 0.02), ("FedProx", COLUMN, 0, 0.02)]
    runs += [("FedAvg", MILDER, 0, 0.02), ("FedAvg", OTHER, 0, 0.02)]
    write_report([write_pool(tmp_path / "in", runs)], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    _, sharp, mild, alone = re.split("\n### State of the art", text)
    assert sharp.startswith(f": {COLUMN}\n\n| {COLUMN} | plain |")
    assert mild.startswith(f": {MILDER}\n\n| {MILDER} | plain |")
    assert alone.startswith(f"\n\n| {OTHER} | plain |")
    assert ["| FedProx |" in part for part in (sharp, mild, alone)] == [True, False, False]


@pytest.mark.usefixtures("no_figures")
def test_without_numbers_of_the_paper_all_is_as_it_was(tmp_path):
    folder = write_pool(tmp_path / "in", [("FedAvg", OTHER, 0, 0.02)], name="own", shown="")
    (tmp_path / "notes.md").write_text(NOTES, encoding="utf-8")
    write_report([folder], tmp_path / "out", notes=tmp_path / "notes.md")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = (tmp_path / "out" / "tables" / "own.md").read_text(encoding="utf-8")
    assert f"{NOTES}\n#{table}" in text and "At a glance" not in text
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == []


@pytest.mark.usefixtures("no_figures")
def test_the_html_page_has_the_table_first_and_notes_on_data_sets_last(tmp_path, browser):
    folder = write_pool(tmp_path / "in", [("FedAvg", OTHER, 0, 0.02)])
    (tmp_path / "notes.md").write_text(NOTES, encoding="utf-8")
    write_report([folder], tmp_path / "out", notes=tmp_path / "notes.md")
    browser.open(tmp_path / "out" / "index.html")
    sections = browser.js("[...document.querySelectorAll('section')].map((e) => e.id)")
    assert sections[:5] == ["glance", "gains", "notes", "table-sota", "details"]
    assert "On writers." in browser.js("document.getElementById('details').innerText")
    cells = browser.js("[...document.querySelectorAll('#glance td')].map((e) => e.textContent)")
    assert cells == ["FedAvg", *lines_of(folder)[OTHER, "FedAvg"]]
    assert browser.errors == []
