"""Seeds are drawn as their mean and a band, few evaluations as points on a thin line."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.reports import AVERAGE, COLUMN, ROUNDS, curves, data_of, make_sheet, show_all
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, write_sheet
from wima.report.figures import table_figure
from wima.report.inputs import gather
from wima.report.statistics import Curve
from wima.report.write import make_tables, write_report
from wima.runs.summary import MARKED, draw_curve, sparse_until

MODELS = {"plain": "plain", "WIMA": "wima10"}


@pytest.fixture
def seeds(tmp_path):
    """Three seeds that are done, and one at half."""
    cells = []
    for seed, (rounds, state) in enumerate([(ROUNDS, "done")] * 3 + [(30, "interrupted")]):
        own = curves(seed, rounds=rounds)
        write_run(tmp_path / "in" / f"{seed}", {"rounds": ROUNDS, "seed": seed}, own, state)
        cells.append(Cell("FedAvg", COLUMN, seed, f"{seed}", MODELS))
    write_sheet(make_sheet(cells, rows=["FedAvg"], columns=[COLUMN]), tmp_path / "in")
    return tmp_path / "in"


def naive(model: str) -> np.ndarray:
    return np.stack([curves(seed)[model] for seed in range(3)])


def test_a_figure_has_the_mean_of_seeds_on_a_band_from_least_to_greatest(seeds):
    [table], _ = make_tables(gather([seeds], "accuracy"), Measure())
    axes = table_figure(table, COLUMN).axes[0]
    assert axes.get_ylabel() == "test accuracy, %"
    shown = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    bands = [band.get_paths()[0].get_extents() for band in axes.collections]
    names = {"plain": "plain", AVERAGE: "wima10"}
    for (heading, model), extent in zip(names.items(), bands, strict=True):
        values = 100 * naive(model)
        assert np.allclose(shown[f"FedAvg, {heading}"], values.mean(axis=0))
        assert (extent.ymin, extent.ymax) == pytest.approx((values.min(), values.max()))
    assert len(axes.get_lines()) == 4  # and the seed that is not done, beside each mean


def test_the_page_has_the_mean_and_its_ends(seeds, tmp_path, no_figures):
    write_report([seeds], tmp_path / "out")
    for entry in data_of(tmp_path / "out")["tables"][0]["entries"]:
        values = 10_000 * naive(entry["members"][0][2])
        assert entry["band"]["seeds"] == [0, 1, 2]
        for name, of in (("v", np.mean), ("low", np.min), ("high", np.max)):
            assert np.allclose(entry["band"][name], of(values, axis=0), atol=0.51)


def test_a_chart_has_a_line_per_series_and_names_its_axis(browser, seeds, tmp_path, no_figures):
    write_report([seeds], tmp_path / "out")
    browser.open(tmp_path / "out" / "index.html")
    show_all(browser)
    assert browser.js("charts[0].lines.map((line) => line.seed)") == [-1, 3, -1, 3]
    browser.js("document.querySelector('[name=each]').click()")
    assert browser.js("charts[0].lines.map((line) => line.seed)") == [0, 1, 2, 3, 0, 1, 2, 3]
    texts = browser.js("""(() => {
        const texts = [], { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (...args) {
          texts.push(args[0]); fillText.apply(this, args); };
        charts[0].paint();
        return texts;
    })()""")
    assert "test accuracy, %" in texts and "round" in texts
    assert browser.errors == []


@pytest.mark.parametrize(
    ("rounds", "until"),
    [
        (range(1, 40), 0),
        ([*range(15, 271, 15), *range(271, 301)], 270),
        (range(10, 301, 10), 300),  # few: all are points
        (range(10, 10 * (MARKED + 2), 10), 0),  # many at equal distances: a line
        ([*range(10, 10 * (MARKED + 2), 10), *range(811, 820)], 810),
        ([7], 0),
    ],
)
def test_rounds_are_sparse_up_to_the_last_gap(rounds, until):
    assert sparse_until(np.array(rounds)) == until


def test_sparse_evaluations_are_points_on_a_thin_line_and_dense_ones_a_line():
    rounds = np.array([*range(15, 271, 15), *range(271, 301)])
    axes = Figure().add_subplot()
    draw_curve(axes, Curve(rounds, rounds / 300), 270, "name", linewidth=1.6)
    thin, line = axes.get_lines()
    assert list(thin.get_xdata()) == list(range(15, 271, 15)) and thin.get_marker() == "o"
    assert list(line.get_xdata()) == list(range(270, 301)) and line.get_marker() == "None"
    assert thin.get_linewidth() < line.get_linewidth() and line.get_label() == "name"


def test_the_page_knows_up_to_where_a_curve_is_sparse(tmp_path, no_figures):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    path = tmp_path / "run" / "records.jsonl"
    kept = [
        line for t, line in enumerate(path.read_text().splitlines(), 1) if t > 50 or t % 10 == 0
    ]
    path.write_text("\n".join(kept) + "\n")
    write_report([tmp_path / "run"], tmp_path / "out")
    curve = data_of(tmp_path / "out")["runs"][0]["curves"]["plain"]
    assert curve["sparse"] == 50 and curve["t"][:6] == [10, 20, 30, 40, 50, 51]
