"""Sections below a table in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.extras import add_extras
from tests.helpers.reports import ROUNDS, curves, make_sheet, show_all
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, write_sheet
from wima.report.write import write_report

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"
ROWS = ["FedAvg", EVIL]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sections")
    cells = []
    for number, row in enumerate(ROWS):
        for seed in (0, 1):
            name = f"run-{number}-{seed}"
            settings = {"rounds": ROUNDS, "seed": seed, "lr": 0.1 * (1 + number)}
            run = write_run(folder / "in" / name, settings, curves(2 * number + seed))
            add_extras(run, 2 * number + seed, ROUNDS)
            cells.append(Cell(row, "Digits", seed, name, {"plain": "plain", EVIL: "wima10"}))
    names = {"rows": ROWS, "columns": ["Digits"], "headings": ["plain", EVIL]}
    write_sheet(make_sheet(cells, **names), folder / "in")
    write_report([folder / "in"], folder / "out", Measure(target=0.6))
    return folder / "out" / "index.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_sections_are_shown_and_the_body_never_scrolls_sideways(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    show_all(browser)
    titles = browser.js("[...document.querySelectorAll('section h3')].map((e) => e.textContent)")
    assert titles == ["Clients", "Fine-tuning", "Calibration"]
    counts = browser.js("[...document.querySelectorAll('.texts tbody')].map((e) => e.rows.length)")
    assert counts == [4, 8, 4]  # rows, models, and stages of fine-tuning
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.title").startswith("Report on")
    assert browser.js("document.querySelector('.details').innerText").count("MB to target") == 1
    assert browser.errors == []


def test_each_panel_has_a_line_per_model_in_its_colour_and_a_name(browser, page):
    browser.open(page)
    show_all(browser)
    lines = "[...document.querySelectorAll('.panels svg[role=img]')].map((e) => e.querySelectorAll"
    assert browser.js(f"{lines}('.line').length)") == [2, 2, 2, 2]
    assert browser.js(f"{lines}('.diagonal').length)") == [0, 0, 1, 1]
    assert all(
        browser.js(
            "[...document.querySelectorAll('.panels svg[role=img]')].map((e) => e.ariaLabel)"
        )
    )
    stroke = (
        "[...document.querySelectorAll('.panels .line')].map((e) => getComputedStyle(e).stroke)"
    )
    light = browser.js(stroke)
    assert len(set(light)) == 2
    browser.prefer_dark(True)
    assert not {*browser.js(stroke)} & {*light}


def test_points_of_a_panel_are_inside_it_and_rise(browser, page):
    browser.open(page)
    show_all(browser)
    path = browser.js("document.querySelector('.panels .line').getAttribute('d')")
    points = [tuple(map(float, text.split())) for text in path[1:].split("L")]
    assert len(points) == 21
    across, up = zip(*points, strict=True)
    assert list(across) == sorted(across) and list(up) == sorted(up, reverse=True)
    box = browser.js("document.querySelector('.panels svg').viewBox.baseVal.width")
    assert 0 < min(across) <= max(across) < box
