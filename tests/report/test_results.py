"""docs/results.md is what `wima report` makes of the records beside it."""

from __future__ import annotations

import re

import pytest

from tests.helpers.paths import ROOT
from wima.report.gather import gather
from wima.report.summary import summarize
from wima.report.write import write_report
from wima.runs.folder import read_run

DOCS = ROOT / "docs"
RUNS, AUTO = DOCS / "results" / "cpu", DOCS / "results" / "auto"


def body(page: str) -> list[str]:
    """Without the line that says when it was made."""
    return [line for line in page.splitlines() if not line.startswith("Made by")]


def test_the_results_are_made_from_the_records(tmp_path, no_figures):
    done = write_report([RUNS], tmp_path / "report", notes=DOCS / "results" / "notes.md")
    assert done.omitted == []
    made = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert body(made) == body((DOCS / "results.md").read_text(encoding="utf-8"))


def test_the_regrets_of_windows_are_made_from_the_records(tmp_path, no_figures):
    done = write_report([AUTO], tmp_path / "report")
    assert done.omitted == []
    made = (tmp_path / "report" / "tables" / "auto.md").read_text(encoding="utf-8")
    page = (DOCS / "choosing-w.md").read_text(encoding="utf-8")
    assert [line for line in made.splitlines() if line.startswith("|") and line not in page] == []


@pytest.mark.parametrize("folder", [RUNS, AUTO])
def test_every_run_of_the_results_is_finished(folder):
    found = gather([folder], "accuracy")
    assert found.runs and {run.state for run in found.runs.values()} <= {"done", "diverged"}


def test_the_numbers_at_the_papers_own_scale_are_those_of_the_records():
    run = read_run(next((DOCS / "results" / "paper").glob("femnist-fedavg-s0-*")))
    means = {row.model: 100 * row.mean for row in summarize(run)}
    models = ("plain", "wima100", "wima20", "wima-auto", "ema0.9802")
    notes = (DOCS / "results" / "notes.md").read_text(encoding="utf-8")
    ours, gains = (re.search(rf"^\| {row} \|(.*)\|$", notes, re.M)[1] for row in ("ours", "gain"))
    assert re.findall(r"[\d.]+", ours) == [f"{means[model]:.2f}" for model in models]
    found = [float(gain) for gain in re.findall(r"(?:\| |^ )(\+[\d.]+)", gains)]
    assert found == [pytest.approx(means[m] - means["plain"], abs=0.005) for m in models[1:]]
