"""docs/results.md is what `wima report` makes of the records beside it."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from tests.helpers.paths import ROOT
from wima.report.inputs import gather
from wima.report.write import write_report

DOCS = ROOT / "docs"
RESULTS = {name: DOCS / "results" / name for name in ("paper", "cpu", "auto", "clients", "privacy")}
PAPER, RUNS = RESULTS["paper"], RESULTS["cpu"]
PAGES = {
    "clients": ["measures.md"],
    "privacy": ["measures.md"],
}


SOFTWARE = f"Matplotlib version{matplotlib.__version__}".encode()


def body(page: str) -> list[str]:
    """Without the line that says when it was made."""
    return [line for line in page.splitlines() if not line.startswith("Made by")]


def test_the_results_are_made_from_the_records(tmp_path, no_figures):
    done = write_report([PAPER, RUNS], tmp_path / "results", notes=DOCS / "results" / "notes.md")
    assert done.omitted == []
    made = (tmp_path / "results" / "report.md").read_text(encoding="utf-8")
    assert body(made) == body((DOCS / "results.md").read_text(encoding="utf-8"))
    [picture] = (tmp_path / "results").glob("*.png")
    kept = DOCS / picture.name
    assert f"]({picture.name})" in made and kept.stat().st_size < 200_000
    if SOFTWARE in kept.read_bytes():  # other versions draw other pixels
        assert np.array_equal(imread(picture), imread(kept))


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_made_from_the_records(name, tmp_path, no_figures):
    done = write_report([RESULTS[name]], tmp_path / "report")
    assert done.omitted == []
    made = (tmp_path / "report" / "tables" / f"{name}.md").read_text(encoding="utf-8")
    page = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES[name])
    assert [line for line in made.splitlines() if line.startswith("|") and line not in page] == []


@pytest.mark.parametrize("folder", RESULTS.values(), ids=str)
def test_every_run_of_the_results_is_finished(folder):
    found = gather([folder], "accuracy")
    assert found.runs and {run.state for run in found.runs.values()} <= {"done", "diverged"}
