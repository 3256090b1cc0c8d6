"""A table says how many intervals it has, and which exclude zero after Holm's correction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.reports import data_of, make_sheet, place
from tests.helpers.run_folders import write_run
from wima.experiments.sheet import Cell, write_sheet
from wima.report.write import write_report

pytestmark = pytest.mark.usefixtures("no_figures")
ROUNDS, COLUMN = 40, "digits"


def report_on(
    gains: dict[str, float], folder, rounds: int = ROUNDS, seeds: int = 1, deviation: float = 0.01
):
    """A report on runs whose averages gain so much, with noise from round to round."""
    cells = []
    for number, (row, gain) in enumerate(gains.items()):
        for seed in range(seeds):
            noise = np.random.default_rng([number, seed]).normal(0, deviation, size=rounds)
            plain = np.full(rounds, 0.5)
            settings = {"rounds": rounds, "seed": seed}
            averages = {"plain": plain, "wima10": plain + gain + noise}
            write_run(folder / "in" / f"{row}-{seed}", settings, averages)
            models = {"plain": "plain", "average": "wima10"}
            cells.append(Cell(row, COLUMN, seed, f"{row}-{seed}", models))
    names = {"rows": list(gains), "columns": [COLUMN], "headings": ["plain", "average"]}
    write_sheet(make_sheet(cells, name="mine", shown="", **names), folder / "in")
    write_report([folder / "in"], folder / "out")
    return folder / "out"


@pytest.fixture
def three(tmp_path):
    return report_on({"large": 0.1, "little": 0.0045, "none": 0.0}, tmp_path)


def written(report, ending: str) -> str:
    return (report / "tables" / f"mine.{ending}").read_text(encoding="utf-8")


def gain_of(report, row: str) -> dict[str, str]:
    return place(report, row, COLUMN, "average")


def test_a_gain_is_marked_if_it_differs_from_zero_after_holms_correction(three):
    ps = {row: float(gain_of(three, row)["gain_p"]) for row in ("large", "little", "none")}
    assert ps["large"] < 0.05 / 3 and 0.05 / 2 < ps["little"] < 0.05 < ps["none"]
    for ending in ("md", "csv"):
        marked = [line for line in written(three, ending).splitlines() if "*†" in line]
        assert len(marked) == 1 and "large" in marked[0]
    assert written(three, "tex").count(r"*$\dagger$") == 1
    marks = [e["gain"][4] for e in data_of(three)["tables"][0]["entries"] if "gain" in e]
    assert marks == [True, False, False]


def test_the_data_have_holms_p_values(three):
    large, little, none = (gain_of(three, row) for row in ("large", "little", "none"))
    assert float(large["gain_p_holm"]) == pytest.approx(3 * float(large["gain_p"]))
    assert float(little["gain_p_holm"]) == pytest.approx(2 * float(little["gain_p"]))
    assert float(none["gain_p_holm"]) == pytest.approx(float(none["gain_p"]))


def test_notes_say_how_many_intervals_there_are(three):
    notes = " ".join(data_of(three)["tables"][0]["gainNotes"])
    assert "Intervals: 3, of which 0.15 would exclude zero by chance" in notes
    assert "widened for their correlation" in notes and "fewer than 30" not in notes
    assert all(note in written(three, "tex") for note in ("Intervals: 3", "Holm's correction"))


def test_a_gain_without_interval_is_explained_and_does_not_count(tmp_path):
    notes = data_of(report_on({"short": 0.1}, tmp_path, rounds=20))["tables"][0]["gainNotes"]
    assert any("fewer than 30 evaluations" in note for note in notes)
    assert not any("Intervals" in note or note.startswith("*") for note in notes)
    assert "†" not in written(tmp_path / "out", "md")


def test_intervals_over_seeds_are_marked_too(tmp_path):
    report = report_on({"large": 0.1, "none": 0.0}, tmp_path, seeds=3)
    assert "]† |" in written(report, "md") and "]\\*" not in written(report, "md")
    assert gain_of(report, "none")["gain_basis"] == "seeds"


@pytest.mark.parametrize("seeds", [1, 2])
def test_equal_gains_have_no_interval_and_no_mark_and_a_note_says_why(tmp_path, seeds):
    report = report_on({"one": 0.03, "other": -0.01}, tmp_path, seeds=seeds, deviation=0)
    notes = data_of(report)["tables"][0]["gainNotes"]
    assert any("all differences are equal" in note for note in notes)
    assert not any("fewer than 30" in note or "Intervals:" in note for note in notes)
    text, tex = written(report, "md"), written(report, "tex")
    assert "†" not in text and "+3.00 |" in text and "all differences are equal" in text
    assert "dagger" not in tex and "% No interval" in tex
    assert gain_of(report, "one")["gain_p"] == gain_of(report, "one")["gain_half"] == ""
    gains = [e["gain"] for e in data_of(report)["tables"][0]["entries"] if "gain" in e]
    assert [(half, marked) for _, half, _, _, marked in gains] == [(None, False)] * 2
    headline = (report / "report.md").read_text(encoding="utf-8").splitlines()[2]
    assert "2 comparisons (no intervals)" in headline
