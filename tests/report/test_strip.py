"""Windows that vary are shown under the curves: in the run's picture, in figures, on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.reports import COLUMN, OTHER, ROUNDS, curves, data_of, make_sheet, show_all
from tests.helpers.run_folders import write_run
from wima.experiments.sheet import Cell, write_sheet
from wima.report.write import write_report
from wima.runs.run import read_run
from wima.runs.summary import draw_curves

AUTO, TITLE = "wima-auto", "models in the window"


def chosen(seed: int) -> list[int]:
    """Windows that jump about, none longer than the run so far."""
    rng = np.random.default_rng([seed, 1])
    return [int(rng.integers(1, t + 1)) for t in range(1, ROUNDS + 1)]


def write_auto(path: Path, seed: int = 0) -> Path:
    own = {**curves(seed), AUTO: curves(seed + 1)["wima10"]}
    return write_run(path, {"rounds": ROUNDS, "seed": seed}, own, windows={AUTO: chosen(seed)})


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that were written."""
    found: list[Figure] = []
    original = Figure.savefig

    def savefig(self, *arguments, **options):
        found.append(self)
        original(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def strips(figure: Figure) -> list[list[list[float]]]:
    """The curves in strips, each as its values."""
    own = [axes for axes in figure.axes if axes.get_ylabel().replace("\n", " ") == TITLE]
    assert all(axes.get_yscale() == "log" for axes in own)
    return [[list(line.get_ydata()) for line in axes.get_lines()] for axes in own]


def test_the_picture_of_a_run_has_a_strip_if_a_window_varies(tmp_path, saved):
    write_auto(tmp_path / "auto")
    write_run(tmp_path / "fixed", {"rounds": ROUNDS}, curves(0))
    for name in ("auto", "fixed"):
        run = read_run(tmp_path / name)
        draw_curves(run.curves, run.title, tmp_path / f"{name}.png")
    assert [strips(figure) for figure in saved] == [[[chosen(0)]], []]
    assert [len(figure.axes[0].get_lines()) for figure in saved] == [3, 2]


@pytest.fixture
def columns(tmp_path) -> Path:
    """A table with two columns; in the first, windows vary."""
    models = {"plain": "plain", "WIMA": AUTO}
    cells = []
    for seed in (0, 1):
        write_auto(tmp_path / f"auto-{seed}", seed)
        write_run(tmp_path / f"fixed-{seed}", {"rounds": ROUNDS, "seed": seed}, curves(seed))
        cells.append(Cell("FedAvg", COLUMN, seed, f"auto-{seed}", models))
        cells.append(Cell("FedAvg", OTHER, seed, f"fixed-{seed}", {**models, "WIMA": "wima10"}))
    write_sheet(make_sheet(cells, rows=["FedAvg"]), tmp_path)
    return tmp_path


def test_a_figure_has_a_strip_with_a_line_per_seed_if_a_window_varies(columns, saved):
    write_report([columns], columns / "out")
    first, _, second, _ = saved  # each as PNG and SVG
    assert strips(first) == [[chosen(0), chosen(1)]] and strips(second) == []
    coloured = {line.get_label(): line.get_color() for line in first.axes[0].get_lines()}
    assert {line.get_color() for line in first.axes[1].get_lines()} == {coloured["FedAvg, WIMA"]}


def test_windows_in_the_page_are_those_of_the_records(columns, no_figures):
    write_report([columns], columns / "out")
    for run in data_of(columns / "out")["runs"]:
        auto = "auto" in Path(run["name"]).name
        expected = {AUTO: {"first": 1, "step": 1, "v": chosen(run["seed"])}} if auto else {}
        assert run["windows"] == expected


def choose(browser, column: int) -> None:
    browser.js(f"document.querySelector('[name=column]').value = {column}")
    browser.js("document.querySelector('[name=column]').dispatchEvent(new Event('change'))")
    browser.settle()


@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_shows_the_strip_where_a_window_varies(browser, columns, no_figures, width):
    write_report([columns], columns / "out")
    browser.open(columns / "out" / "index.html", width=width)
    show_all(browser)
    height = "document.querySelector('canvas').clientHeight"
    with_strip = browser.js(height)
    choose(browser, 1)
    assert with_strip - browser.js(height) == browser.js("STRIP.height + STRIP.above")
    choose(browser, 0)
    assert browser.js(height) == with_strip
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


def test_a_series_that_is_hidden_leaves_the_strip(browser, columns, no_figures):
    write_report([columns], columns / "out")
    browser.open(columns / "out" / "index.html")
    show_all(browser)
    drawn = """(() => {
        const canvas = document.querySelector("canvas"), { width, height } = canvas;
        const top = Math.round(charts[0].at.bottom - STRIP.height), pixels = new Set();
        const { data } = canvas.getContext("2d").getImageData(0, top, width, STRIP.height);
        for (let i = 0; i < data.length; i += 4) {
          const [r, g, b, a] = data.slice(i, i + 4);
          if (a > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 40) pixels.add(i);
        }
        return pixels.size;
    })()"""
    assert browser.js(drawn) > 200
    browser.js("document.querySelectorAll('.chip')[1].click()")
    browser.settle()
    assert browser.js(drawn) == 0


def test_the_readout_of_a_curve_says_how_many_models_are_in_its_window(
    browser, columns, no_figures
):
    write_report([columns], columns / "out")
    browser.open(columns / "out" / "index.html")
    show_all(browser)
    browser.js("document.querySelector('[name=each]').click()")
    browser.js("document.querySelector('canvas').focus()")
    readout = "document.querySelector('.readout').textContent"
    for key in ("End", "End", "ArrowLeft", "ArrowDown", "ArrowDown"):  # two seeds of plain first
        browser.key(key)
    value, models = 100 * curves(1)["wima10"][-2], chosen(0)[-2]
    expected = f"round {ROUNDS - 1} · WIMA, seed 0: {value:.2f} %, mean of {models} models"
    assert browser.js(readout) == expected
