"""One sentence over the page: whether averaging helps, by how much, and how sure that is."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.reports import COLUMN, LAST, ROUNDS, curves, make_sheet
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.core.statistics import holm
from wima.experiments.sheet import Cell, printed, write_sheet
from wima.report.inputs import gather
from wima.report.page import forest
from wima.report.paper_page import comparisons, headline, median_interval
from wima.report.statistics import gain as gain_over
from wima.report.write import make_tables, write_report

GAINS = {"FedAvg": 0.05, "SCAFFOLD": 0.001, "FedDyn": -0.04}
MODELS = {"plain": "plain", "WIMA": "wima10"}


def runs_of(row: str, seeds: int = 3) -> list[dict[str, np.ndarray]]:
    """Curves whose averages gain about so much, a little more or less in each seed."""
    plain = [curves(seed)["plain"] for seed in range(seeds)]
    gained = [values + GAINS[row] + 0.002 * seed for seed, values in enumerate(plain)]
    return [{"plain": p, "wima10": g, "wima1": p} for p, g in zip(plain, gained, strict=True)]


def write_pool(folder: Path, rows=tuple(GAINS), seeds: int = 3, **changes) -> Path:
    cells = []
    for row in rows:
        for seed, own in enumerate(runs_of(row, seeds)):
            name = f"{row}-{seed}"
            write_run(folder / name, {"rounds": ROUNDS, "seed": seed}, own)
            cells.append(Cell(row, COLUMN, seed, name, MODELS))
    write_sheet(make_sheet(cells, **{"rows": list(rows), "columns": [COLUMN], **changes}), folder)
    return folder


def said(folder: Path, measure: Measure | None = None) -> str:
    measure = measure or Measure()
    return headline(make_tables(gather([folder], measure.metric), measure)[0])


def points(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "\N{MINUS SIGN}")


def test_it_counts_comparisons_and_those_that_are_sure(tmp_path):
    differences = {
        row: [(own["wima10"] - own["plain"])[-LAST:].mean() for own in runs_of(row)]
        for row in GAINS
    }
    gains = {row: gain_over(own, "seeds") for row, own in differences.items()}
    sure = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
    clear = [gains[row].mean > 0 for row, p in sure.items() if p <= 0.05]
    expected = "Averaging (WIMA, W = 10) improves test accuracy in 2 of 3 comparisons "
    expected += f"(significantly in {clear.count(True)}, significantly worse in 1); "
    middle = np.median([gain.mean for gain in gains.values()])
    expected += f"median gain {points(middle)} points; largest loss {points(gains['FedDyn'].mean)}"
    assert said(write_pool(tmp_path)) == f"{expected} points (FedDyn, {COLUMN}). 3 seeds."


def test_a_single_comparison_is_told_with_its_interval(tmp_path):
    own = [(c["wima10"] - c["plain"])[-LAST:].mean() for c in runs_of("FedAvg")]
    gain = gain_over(own, "seeds")
    low, high = points(gain.mean - gain.half), points(gain.mean + gain.half)
    expected = f"by {points(gain.mean)} points [{low}, {high}] (FedAvg, {COLUMN}). 3 seeds."
    assert said(write_pool(tmp_path, rows=["FedAvg"])).endswith(expected)


def test_one_seed_is_said_once(tmp_path):
    write_report([write_pool(tmp_path / "in", seeds=1)], tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    top, table = page.split("## State of the art")
    assert top.count("1 seed") == 1 and "says nothing about other seeds" in top
    assert table.count("1 seed") == 1


def test_a_loss_improves_if_it_falls(tmp_path):
    text = said(write_pool(tmp_path), Measure("loss"))
    assert "improves test loss in 2 of 3" in text and "median change \N{MINUS SIGN}" in text
    assert "largest rise +" in text and "points" not in text


def test_a_training_counts_once_and_a_window_of_one_model_not_at_all(tmp_path):
    write_pool(tmp_path)
    before = said(tmp_path)
    models = {"plain": "plain", "one": "wima1", "again": "wima10"}
    cells = [Cell("a", COLUMN, seed, f"FedAvg-{seed}", models) for seed in range(3)]
    names = {"rows": ["a"], "columns": [COLUMN], "headings": list(models)}
    write_sheet(make_sheet(cells, name="again", **names), tmp_path)
    assert said(tmp_path) == before


def test_without_a_finished_pair_it_says_so(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0, rounds=20), "interrupted")
    assert said(tmp_path).startswith("No comparison yet")


def test_it_says_how_many_have_an_interval(tmp_path):
    write_pool(tmp_path)
    few = {name: values[:5] for name, values in runs_of("FedAvg", 1)[0].items()}
    write_run(tmp_path / "few", {"rounds": 5, "lr": 0.5}, few)
    assert "of 4 comparisons (significantly in 1 of 3 with an interval, sig" in said(tmp_path)


@pytest.mark.parametrize("count", [3, 5, 6, 9, 12])
def test_the_interval_of_a_median_is_that_of_all_outcomes_of_fair_coins(count):
    """With k values cut off at each end, it misses if fewer than k of n are on one side."""
    heads = [sum(coins) for coins in product((0, 1), repeat=count)]
    cut = [k for k in range(1, count) if 2 * np.mean([h < k for h in heads]) <= 0.05]
    values = list(np.arange(count) ** 2.0)
    expected = (values[max(cut) - 1], values[-max(cut)]) if cut else None
    assert median_interval(values) == expected


def test_the_forest_has_a_line_with_its_interval_for_each_comparison(tmp_path, no_figures):
    folder = write_pool(tmp_path / "in")
    tables, _ = make_tables(gather([folder], "accuracy"), Measure())
    found = comparisons(tables)
    write_report([folder], tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    made = page[page.index('<section id="gains">') :].partition("</section>")[0]
    assert made.count("<tr>") == len(found) == 3
    assert all(Measure().interval(c.gain).split(" ", 1)[1] in made for c in found)
    assert forest([])["blocks"] == []


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_papers_gain_is_grey_unless_the_settings_are_the_papers(tmp_path, scale):
    folder = write_pool(tmp_path, rows=["FedAvg", "SCAFFOLD"], scale=scale)
    tables, _ = make_tables(gather([folder], "accuracy"), Measure())
    [block] = forest(comparisons(tables))["blocks"]
    assert printed("sota", "FedAvg", COLUMN, "WIMA") is not None
    rows = [(bool(row["paper"]), row["same"]) for row in block["rows"]]
    assert rows == [(True, scale == "paper")] * 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_is_seen_without_scrolling(browser, tmp_path, no_figures, width, height, dark):
    folder = write_pool(tmp_path / "in")
    write_report([folder], tmp_path / "out")
    browser.open(tmp_path / "out" / "index.html", width, height, dark)
    place = "document.getElementById('headline')"
    assert browser.js(f"{place}.innerText") == said(folder)
    box = browser.js(f"{place}.getBoundingClientRect().toJSON()")
    assert 0 < box["top"] < box["bottom"] < height / 2
    colours = browser.js(f"[{place}, document.body].map((e) => getComputedStyle(e).color)")
    assert len(set(colours)) == 1  # ink on paper
    assert browser.js("document.documentElement.scrollWidth") <= width
    tracks = browser.js("[...document.querySelectorAll('.forest svg')].map((e) => e.clientWidth)")
    assert len(tracks) == 4 and min(tracks) > 80  # an axis and three lines
    assert browser.errors == []
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert page.splitlines()[2].replace("\\", "").strip("*") == said(folder)
