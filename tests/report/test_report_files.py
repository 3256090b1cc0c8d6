"""The files that a report consists of: page, tables, figures, data."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np

from tests.helpers.reports import ROUNDS, curves, data_of
from tests.helpers.run_folders import write_run
from wima.report.inputs import MARKER
from wima.report.write import write_report


def test_one_markdown_page_has_all_tables_and_the_machines(report, pool, tmp_path, no_figures):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    write_report([tmp_path / "run"], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = (tmp_path / "out" / "tables" / "runs.md").read_text(encoding="utf-8")
    assert "#" + table.rstrip("\n") in text and "- 1 run: " in text
    text = (report / "report.md").read_text(encoding="utf-8")
    assert "### State of the art" in text and "## Machines" in text
    assert f"- {len(list(pool.glob('*/status.json')))} runs: " in text


def test_everything_is_written_and_figures_are_pictures(report):
    names = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    figures = {f"figures/sota-{n}.{kind}" for n in (1, 2) for kind in ("png", "svg")}
    tables = {f"tables/sota.{kind}" for kind in ("md", "tex", "csv")}
    assert names == {"index.html", "data.csv", "report.md", MARKER} | figures | tables
    for name in figures:
        content = (report / name).read_bytes()
        if name.endswith("svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert content.startswith(b"\x89PNG")
    assert set(data_of(report)["files"]["sota"]) == figures | tables


def test_the_page_needs_nothing_but_itself(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    head = text[: text.index('id="data"')]
    assert "{{" not in head
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(""", text)


def test_curves_in_the_page_are_those_of_the_records(report, pool):
    run = next(r for r in data_of(report)["runs"] if r["name"].endswith("fedavg-0"))
    expected = [round(10_000 * value) for value in curves(0)["plain"]]
    assert run["curves"]["plain"] == {"first": 1, "step": 1, "v": expected}
    assert run["command"] and "seed = 0" in run["settings"] and run["seconds"] == ROUNDS / 4
    assert run["name"] == str(pool / "fedavg-0")


def test_long_curves_are_thinned_in_the_page(tmp_path):
    values = np.random.default_rng(0).uniform(size=5000)
    write_run(tmp_path / "run", {"rounds": 5000}, {"plain": values})
    write_report([tmp_path / "run"], tmp_path / "out")
    curve = data_of(tmp_path / "out")["runs"][0]["curves"]["plain"]
    assert len(curve["v"]) <= 1002 and curve["t"][-1] == 5000
    assert max(curve["v"]) == round(10_000 * values.max())
