"""The table of regrets: rules that choose a window beside the best window in hindsight."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.helpers.reports import make_sheet
from tests.helpers.run_folders import write_run
from wima.experiments.sheet import Cell, write_sheet
from wima.report.choices import NEAR, SMOOTH, WIDE, choices_figure
from wima.report.gather import gather
from wima.report.measure import Measure
from wima.report.regret import LAST, MIDDLE, NOTES, regret_lines, regrets
from wima.report.write import make_tables, write_report

pytestmark = pytest.mark.usefixtures("no_figures")
ROUNDS = 90
MODELS = {
    "plain": "plain",
    "auto": "wima-auto",
    "paper": "wima20",
    "W = 100": "wima20",
    "W = 5": "wima1",
}


def levels(rng, *names: str) -> dict[str, np.ndarray]:
    return {name: rng.uniform(0.4, 0.6, ROUNDS) for name in names}


@pytest.fixture
def pool(tmp_path):
    rng = np.random.default_rng(0)
    runs = {s: levels(rng, "plain", "wima-auto", "wima20", "wima1") for s in range(3)}
    for seed, curves in runs.items():
        write_run(tmp_path / "in" / f"run{seed}", {"rounds": ROUNDS, "seed": seed}, curves)
    write_run(tmp_path / "in" / "cut", {"rounds": ROUNDS, "seed": 3}, runs[0], "interrupted")
    cells = [Cell("FedAvg", "digits", s, f"run{s}", MODELS) for s in runs]
    cells.append(Cell("FedAvg", "digits", 3, "cut", MODELS))
    names = {"rows": ["FedAvg"], "columns": ["digits"], "headings": list(MODELS)}
    sheet = make_sheet(cells, name="auto", kind="regret", shown="", **names)
    write_sheet(sheet, tmp_path / "in")
    return tmp_path / "in", runs


@pytest.mark.parametrize(("part", "rounds"), [(LAST, slice(60, 90)), (MIDDLE, slice(30, 60))])
def test_a_rule_is_behind_the_best_of_plain_and_the_fixed_windows_of_that_run(pool, part, rounds):
    folder, runs = pool
    [table], _ = make_tables(gather([folder], "accuracy"), Measure())
    found = regrets(table, Measure(), part)
    assert len(found) == len(runs)  # the interrupted run is left out
    for regret, curves in zip(found, runs.values(), strict=True):
        means = {name: values[rounds].mean() for name, values in curves.items()}
        best = max(("plain", "wima20", "wima1"), key=means.__getitem__)
        assert regret.window == best.removeprefix("wima").replace("plain", "1")
        assert regret.best == pytest.approx(means[best])
        expected = {"auto": means["wima-auto"], "paper": means["wima20"]}
        assert regret.behind == pytest.approx({k: v - means[best] for k, v in expected.items()})


def test_of_a_loss_the_least_is_best(pool):
    folder, runs = pool
    [table], _ = make_tables(gather([folder], "accuracy"), Measure())
    found = regrets(table, Measure("loss"), LAST)
    for regret, curves in zip(found, runs.values(), strict=True):
        fixed = [curves[name][60:].mean() for name in ("plain", "wima20", "wima1")]
        assert regret.best == pytest.approx(min(fixed))


def test_lines_are_means_over_seeds_then_mean_and_worst_of_all_runs(pool):
    folder, _ = pool
    [table], _ = make_tables(gather([folder], "accuracy"), Measure())
    header, lines = regret_lines(table, Measure())
    assert header[:5] == ["", "", "plain", "best window", "best"]
    own, mean, worst = lines
    assert own[:2] == ["FedAvg", "digits"] and own[5:] == mean[5:]
    behind = [regret.behind["auto"] for regret in regrets(table, Measure(), LAST)]
    column = header.index("auto − best")
    assert mean[column] == Measure().number(np.mean(behind), signed=True)
    assert worst[column] == Measure().number(min(behind), signed=True)


def test_every_file_of_the_report_has_the_table(pool, tmp_path):
    write_report([pool[0]], tmp_path / "out")
    for ending in ("md", "tex", "csv"):
        text = (tmp_path / "out" / "tables" / f"auto.{ending}").read_text(encoding="utf-8")
        assert "worst of all runs" in text


def test_the_picture_shows_the_chosen_windows_beside_the_good_ones(pool):
    folder, runs = pool
    for seed in runs:
        path = folder / f"run{seed}" / "records.jsonl"
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        chosen = [{**r, "windows": {"wima-auto": max(1, r["t"] // 4)}} for r in records]
        path.write_text("".join(json.dumps(r) + "\n" for r in chosen), encoding="utf-8")
    [table], _ = make_tables(gather([folder], "accuracy"), Measure())
    [panel, *empty] = choices_figure(table, "digits", Measure()).axes
    assert panel.get_title() == "FedAvg" and not any(other.axison for other in empty)
    assert len(panel.lines) == len(runs)
    for line in panel.lines:
        assert list(line.get_ydata()) == [max(1, t // 4) for t in range(1, ROUNDS + 1)]
    means = {name: np.mean([c[name] for c in runs.values()], axis=0) for name in runs[0]}
    late = {name: means[name][-SMOOTH:].mean() for name in ("plain", "wima20", "wima1")}
    good = [name for name in late if late[name] >= max(late.values()) - NEAR]
    sizes = [{"plain": 1, "wima1": 1, "wima20": 20}[name] for name in good]
    [band] = panel.collections
    ends = band.get_paths()[0].vertices
    last = ends[ends[:, 0] == ROUNDS][:, 1]
    assert min(last) == pytest.approx(min(sizes) / WIDE)
    assert max(last) == pytest.approx(max(sizes) * WIDE)


def test_the_page_shows_the_lines_of_regrets(browser, pool, tmp_path):
    write_report([pool[0]], tmp_path / "out")
    [table], _ = make_tables(gather([pool[0]], "accuracy"), Measure())
    header, lines = regret_lines(table, Measure())
    browser.open(tmp_path / "out" / "index.html")
    texts = "(e) => [...e.children].map((c) => c.textContent)"
    rows = browser.js(f"[...document.querySelectorAll('.table tr')].map({texts})")
    assert rows == [header, *lines]
    assert NOTES[1] in browser.js("document.querySelector('.table .rest').textContent")
    assert browser.errors == []
