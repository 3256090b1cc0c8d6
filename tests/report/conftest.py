"""Runs in every state, the report on them, and a browser to look at reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.browser import Browser, find_browser
from tests.helpers.reports import COLUMN, OTHER, ROUNDS, curves, make_sheet
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, write_sheet
from wima.report.write import write_report


@pytest.fixture(scope="session")
def pool(tmp_path_factory) -> Path:
    """FedAvg with three seeds, SCAFFOLD with one done and one at half, FedDyn diverged; gaps."""
    folder = tmp_path_factory.mktemp("reports") / "pool"
    models = {"plain": "plain", "WIMA": "wima10"}
    runs = [("FedAvg", COLUMN, seed, ROUNDS, "done") for seed in (0, 1, 2)]
    runs += [("SCAFFOLD", COLUMN, 0, ROUNDS, "done"), ("SCAFFOLD", COLUMN, 1, 30, "interrupted")]
    runs += [("SCAFFOLD", OTHER, 0, 20, "interrupted"), ("FedDyn", COLUMN, 0, 12, "diverged")]
    cells = []
    for number, (row, column, seed, rounds, state) in enumerate(runs):
        name = f"{row.lower()}-{number}"
        settings = {"rounds": ROUNDS, "seed": seed, "algorithm": row.lower()}
        write_run(folder / name, settings, curves(number, rounds=rounds), state)
        cells.append(Cell(row, column, seed, name, models))
    cells.append(Cell("FedAvg", OTHER, 0, "not-there", models))
    write_sheet(make_sheet(cells), folder)
    return folder


@pytest.fixture(scope="session")
def report(pool: Path) -> Path:
    out = pool.parent / "report"
    write_report([pool], out, Measure(target=0.65))
    return out


@pytest.fixture
def no_figures(monkeypatch) -> None:
    """Drawing them takes most of the time of a report, and not every test looks at them."""
    for name in ("draw_table", "draw_picture"):
        monkeypatch.setattr(f"wima.report.write.{name}", lambda *_: [])
    monkeypatch.setattr("wima.report.figures.draw_comparison", lambda *_: None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on this machine")
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
