"""A report on many runs: small, and still usable in a browser."""

from __future__ import annotations

import pytest

from tests.helpers.reports import data_of, show_all
from tests.helpers.run_folders import write_runs
from wima.report.write import Report, write_report

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def report_on_500(tmp_path_factory) -> Report:
    folder = tmp_path_factory.mktemp("many")
    write_runs(folder / "runs", 500, 400)
    return write_report([folder / "runs"], folder / "report")


def test_the_page_of_500_runs_stays_small(report_on_500):
    folder = report_on_500.folder
    assert report_on_500.runs == 500 and not report_on_500.omitted
    assert (folder / "index.html").stat().st_size < 15e6
    assert len(list((folder / "figures").iterdir())) == 2
    assert len(data_of(folder)["tables"][0]["rows"]) == 100


def test_500_runs_are_usable(browser, report_on_500):
    browser.open(report_on_500.folder / "index.html")
    show_all(browser)
    assert browser.js("document.querySelectorAll('.runs tbody tr').length") == 100
    assert browser.js("document.querySelectorAll('.chip').length") <= 48
    assert browser.js("document.querySelectorAll('*').length") < 12_000
    browser.type("#table-runs input[type=search]", "lr=0.42")
    text = browser.js("document.querySelector('#table-runs .details tbody').innerText")
    assert "lr=0.42" in text and "lr=0.41" not in text
    assert browser.errors == []
