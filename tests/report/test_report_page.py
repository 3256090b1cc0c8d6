"""The page of a report in a real browser: from disk, without a network, by mouse and keyboard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.reports import show_all
from tests.helpers.run_folders import moving_mean, write_run
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, Sheet, write_sheet
from wima.report.write import write_report

ROUNDS = 200
ROWS = ["FedAvg", "SCAFFOLD", "FedDyn"]
COLUMNS = ["CIFAR-10 α = 0", "CIFAR-100 α = 0", "FEMNIST", "Shakespeare"]
EVIL = "</script><img src=x onerror=\"document.title='broken'\">"


def curves(number: int, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    rise = 0.5 + 0.04 * (number % 7) - 0.4 * np.exp(-np.arange(rounds) / 30)
    plain = np.clip(rise + 0.04 * rng.normal(size=rounds), 0, 1)
    return {"plain": plain, "wima50": moving_mean(plain, 50) + 0.01}


def write_pool(folder: Path) -> None:
    """A table of the paper, partly done, one of ours with evil names, and a run in no sheet."""
    models, cells = {"plain": "plain", "WIMA": "wima50"}, []
    for number in range(20):
        row, column = ROWS[number % 3], COLUMNS[number % 4]
        state, rounds = ("diverged", 90) if row == "FedDyn" else ("done", ROUNDS)
        state, rounds = ("interrupted", 40) if number == 7 else (state, rounds)
        settings = {"rounds": ROUNDS, "seed": number, "algorithm": row.lower()}
        write_run(folder / f"run-{number}", settings, curves(number, rounds), state)
        cells.append(Cell(row, column, number, f"run-{number}", models))
    fields = ("sota", "State of the art", "Table 2", "table", "paper", "As printed.")
    lists = (100, ROWS, COLUMNS, ["plain", "WIMA"], cells)
    write_sheet(Sheet(*fields, "wima paper sota --scale paper", *lists), folder)
    cell = Cell(EVIL, EVIL, 0, "run-0", {"plain": "plain", EVIL: "wima50"})
    fields = ("own", EVIL, "", "curves", "", EVIL, EVIL, 100, [EVIL], [EVIL], ["plain", EVIL])
    write_sheet(Sheet(*fields, [cell]), folder)
    write_run(folder / "<b>alone", {"rounds": ROUNDS}, curves(3))
    (folder / "<i>foreign").mkdir()
    (folder / "<i>foreign" / "file").touch()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_pool(folder / "pool")
    notes = folder / "notes.md"
    notes.write_text(f"# Seen\n\n- *one*\n- {EVIL}\n\n[bad](javascript:alert)\n\n```\nwima\n```\n")
    write_report([folder / "pool"], folder / "report", Measure(target=0.6), notes=notes)
    return folder / "report" / "index.html"


def coloured(number: int) -> str:
    """How many pixels of a chart are neither transparent nor grey."""
    return f"""(() => {{
        const canvas = document.querySelectorAll("canvas")[{number}];
        const {{ width, height }} = canvas;
        const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        let count = 0;
        for (let i = 0; i < data.length; i += 4) {{
            const [r, g, b, a] = data.slice(i, i + 4);
            if (a > 100 && Math.max(r, g, b) - Math.min(r, g, b) > 40) count++;
        }}
        return count;
    }})()"""


def test_every_table_and_curve_is_shown_from_disk_without_errors(browser, page):
    browser.open(page)
    show_all(browser)
    titles = browser.js("[...document.querySelectorAll('section h2')].map((e) => e.textContent)")
    expected = [EVIL, "State of the art", "Runs of fedavg on digits", "All runs", "Left out"]
    others = ["At a glance", "Gains over plain", "How the numbers are computed", "Notes"]
    assert sorted(titles) == sorted([*expected, *others])
    notes = browser.js("[...document.querySelectorAll('#notes *')].map((e) => e.tagName)")
    assert notes == ["H2", "H3", "UL", "LI", "EM", "LI", "P", "PRE", "CODE"]
    assert browser.js("document.querySelector('#notes ul').innerText") == f"one\n{EVIL}"
    assert browser.js("document.querySelectorAll('.table table').length") == 3
    assert browser.js("document.querySelectorAll('.runs tbody tr').length") == 21
    assert browser.js("document.querySelectorAll('canvas').length") == 3
    for number in range(3):
        assert browser.js(coloured(number)) > 200
    assert browser.errors == []
    assert {url.split(":")[0] for url in browser.requests} == {"file"}


def test_names_from_folders_are_text_and_nothing_else(browser, page):
    browser.open(page)
    show_all(browser)
    assert browser.js("document.title").startswith("Report on")
    assert browser.js("document.querySelectorAll('img, b, i').length") == 0
    assert browser.js("document.body.innerText.includes('<i>foreign')")


def test_tables_show_ours_the_papers_and_the_difference_in_words_and_colour(browser, page):
    browser.open(page)
    show_all(browser)
    table = "document.querySelector('#table-sota .overview')"
    text = browser.js(f"{table}.innerText")
    assert "paper 69.95" in text and "N/A" in text and "2 seeds" in text
    kinds = browser.js(f"[...{table}.querySelectorAll('.difference')].map((e) => e.textContent)")
    assert all(("▲+" in kind or "▼\N{MINUS SIGN}" in kind) for kind in kinds)
    words = {kind[0] + kind.split()[1] for kind in kinds}
    assert {"▲better", "▼worse"} <= words <= {"▲better", "▼worse", "▲unclear", "▼unclear"}
    colours = browser.js(
        f"['.better', '.worse'].map((c) => getComputedStyle({table}.querySelector(c)).color)"
    )
    assert len(set(colours)) == 2


def test_one_column_in_detail_sorts_by_what_is_clicked(browser, page):
    browser.open(page)
    show_all(browser)
    browser.js("""(() => {
        const choice = document.querySelector("#table-sota select[name=view]");
        choice.value = "2";
        choice.dispatchEvent(new Event("change"));
    })()""")
    table = "document.querySelector('#table-sota .details')"
    assert browser.js(f"{table}.tHead.innerText").split("\n")[0].startswith("row")
    means = f"[...{table}.querySelectorAll('tbody tr td:nth-child(3) .number')]"
    numbers = f"{means}.map((e) => Number(e.textContent)).filter((n) => !Number.isNaN(n))"
    browser.js(f"{table}.querySelector('button.sort').click()")
    found = browser.js(numbers)
    assert found == sorted(found, reverse=True) and len(found) > 2
    assert browser.js(f"{table}.querySelector('[aria-sort=descending]').innerText") == "ours ↓"


def test_a_curve_that_all_rows_share_is_one_series_and_chips_are_dashed_like_curves(
    browser, tmp_path
):
    two = {**curves(0), "ema": curves(1)["wima50"]}
    write_run(tmp_path / "run", {"rounds": ROUNDS}, two)
    write_run(tmp_path / "other", {"rounds": ROUNDS, "lr": 0.5}, two)
    first = {"plain": "plain", "average": "wima50"}
    cells = [
        Cell("W = 5", "CIFAR", 0, "run", first),
        Cell("W = 9", "CIFAR", 0, "run", {**first, "average": "ema", "again": "wima50"}),
        Cell("W = 5", "FEMNIST", 0, "run", first),
        Cell("W = 9", "FEMNIST", 0, "other", first),
    ]
    fields = ("window", "Window", "", "table", "", "", "", 100, ["W = 5", "W = 9"])
    sheet = Sheet(*fields, ["CIFAR", "FEMNIST"], ["plain", "average", "again"], cells)
    write_sheet(sheet, tmp_path)
    write_report([tmp_path], tmp_path / "report")
    browser.open(tmp_path / "report" / "index.html")
    show_all(browser)
    names = "[...document.querySelectorAll('.chip')].map((e) => e.textContent)"
    averages = ["W = 5, average", "W = 9, average"]
    assert browser.js(names) == ["plain", *averages, "W = 9, again"]
    dashes = "[...document.querySelectorAll('.chip path')].map((e) => e.attributes[3].value)"
    assert browser.js(dashes) == ["none", "7 4", "7 4", "2 3"]
    browser.js("document.querySelector('[name=column]').value = 1")
    browser.js("document.querySelector('[name=column]').dispatchEvent(new Event('change'))")
    assert browser.js(names) == ["W = 5, plain", averages[0], "W = 9, plain", averages[1]]
    assert browser.errors == []


def test_a_click_or_a_key_hides_a_series_and_brings_it_back(browser, page):
    browser.open(page)
    show_all(browser)
    chip = "document.querySelector('#table-sota .chip')"
    number = browser.js(
        "[...document.querySelectorAll('canvas')].findIndex((c) => c.closest('#table-sota'))"
    )
    before = browser.js(coloured(number))
    browser.js(f"{chip}.click()")
    browser.settle()
    assert browser.js(f"{chip}.getAttribute('aria-pressed')") == "false"
    assert browser.js(coloured(number)) < before
    browser.js(f"{chip}.focus()")
    browser.key("Enter")
    assert browser.js(f"{chip}.getAttribute('aria-pressed')") == "true"
    assert browser.js(coloured(number)) == before


def test_hovering_and_arrow_keys_read_values_out(browser, page):
    browser.open(page)
    show_all(browser)
    browser.js("document.querySelector('#table-sota canvas').scrollIntoView({ block: 'center' })")
    browser.settle()
    box = browser.js(
        "document.querySelector('#table-sota canvas').getBoundingClientRect().toJSON()"
    )
    browser.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    readout = "document.querySelector('#table-sota .readout').textContent"
    assert browser.js(readout).startswith("round ") and " %" in browser.js(readout)
    browser.js("document.querySelector('#table-sota canvas').focus()")
    for key in ("Escape", "End", "End"):
        browser.key(key)
    last = [100 * curves(seed)["plain"][-1] for seed in (0, 12)]
    expected = f"{np.mean(last):.2f} % ({min(last):.2f} to {max(last):.2f})"
    assert browser.js(readout) == f"round {ROUNDS} · FedAvg, plain, mean of 2 seeds: {expected}"
    browser.js("document.querySelector('#table-sota [name=each]').click()")
    for key in ("Escape", "End", "End"):
        browser.key(key)
    assert browser.js(readout) == f"round {ROUNDS} · FedAvg, plain, seed 0: {last[0]:.2f} %"
    browser.key("ArrowLeft")
    assert browser.js(readout).startswith(f"round {ROUNDS - 1} ")
    browser.key("ArrowDown")
    assert "FedAvg, plain, seed 12" in browser.js(readout)
    browser.key("h")
    assert browser.js("document.querySelector('#table-sota .chip').ariaPressed") == "false"


@pytest.mark.parametrize("name", ["logY", "logX", "late"])
def test_scales_change_the_picture(browser, page, name):
    browser.open(page)
    show_all(browser)
    picture = "document.querySelector('#table-sota canvas').toDataURL()"
    before = browser.js(picture)
    browser.js(f"document.querySelector('#table-sota input[name={name}]').click()")
    browser.settle()
    after = browser.js(picture)
    assert after != before
    browser.js(f"document.querySelector('#table-sota input[name={name}]').click()")
    browser.settle()
    assert browser.js(picture) == before
    assert browser.errors == []


def test_behind_every_number_are_settings_machine_and_command(browser, page):
    browser.open(page)
    show_all(browser)
    browser.js("document.querySelector('#table-sota .number').focus()")
    browser.key("Enter")
    assert browser.js("document.getElementById('dialog').open")
    text = browser.js("document.getElementById('dialog').innerText")
    for part in ("FedAvg · CIFAR-10 α = 0 · plain", "64.37 (Table 2)", "rounds = 200", "torch"):
        assert part in text
    for part in ("Command", "processor", "s per round", "deviation from round to round"):
        assert part in text
    browser.key("Escape")
    assert not browser.js("document.getElementById('dialog').open")
    assert browser.js("document.activeElement.className") == "number"


def test_runs_are_found_by_what_is_in_their_settings(browser, page):
    browser.open(page)
    browser.type("#all-runs input", "scaffold interrupted")
    rows = browser.js("[...document.querySelectorAll('.runs tbody tr')].map((e) => e.innerText)")
    assert len(rows) == 1 and "run-7" in rows[0] and "40/200" in rows[0]


def test_dark_and_light_follow_the_system_and_the_switch(browser, page):
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    light = browser.js(background)
    browser.prefer_dark(True)
    dark = browser.js(background)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))
    for theme, expected in (("light", light), ("dark", dark), ("", dark)):
        browser.js(f"""(() => {{
            const switcher = document.getElementById("theme");
            switcher.value = "{theme}";
            switcher.dispatchEvent(new Event("change"));
        }})()""")
        assert browser.js(background) == expected


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_the_body_never_scrolls_sideways(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    show_all(browser)
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("window.innerWidth") == width
    assert browser.js("document.querySelector('#table-sota .scroll').scrollWidth") > 0
    browser.js("document.querySelector('#table-sota .number').click()")
    assert browser.js("document.getElementById('dialog').scrollWidth") <= width
    assert browser.errors == []


def test_everything_that_can_be_used_is_reached_by_tab_and_has_a_name(browser, page):
    browser.open(page)
    show_all(browser)
    nameless = browser.js("""[...document.querySelectorAll("button, select, input, canvas, a")]
        .filter((e) => !e.hidden && !(e.textContent.trim() || e.ariaLabel || e.closest("label")))
        .map((e) => e.outerHTML)""")
    assert nameless == []
    browser.open(page)
    reached = []
    for _ in range(12):
        browser.key("Tab")
        reached.append(browser.js("document.activeElement.tagName"))
    assert {"A", "SELECT"} <= set(reached) and "BODY" not in reached[:10]
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_it_prints(browser, page):
    browser.open(page)
    assert browser.pdf().startswith(b"%PDF")
    assert browser.js("document.querySelectorAll('.lazy:empty').length") == 0
    assert browser.errors == []
