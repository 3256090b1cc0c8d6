"""What was sent until a target was reached, beside the rounds to it."""

from __future__ import annotations

import shutil
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.comparisons import numbers as compared
from tests.helpers.extras import DOWN, UP, rewrite
from tests.helpers.reports import ROUNDS, curves, data_of, place
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure, megabytes
from wima.report.compare import OLDER, Comparison, caption, compare, grid, write_comparison
from wima.report.write import write_report

TARGET = 0.62
ROW = "fedavg on digits"
pytestmark = pytest.mark.usefixtures("no_figures")


def sent(t: int) -> dict[str, int]:
    """More in some rounds than in others, as where clients drop out."""
    return {"down": DOWN * (1 + t % 3), "up": UP}


def reached(seed: int, model: str) -> int:
    there = curves(seed)[model] >= TARGET
    assert there.any()
    return int(there.argmax()) + 1


def total(rounds: int) -> int:
    return sum(DOWN * (1 + t % 3) + UP for t in range(1, rounds + 1))


def column(made: Comparison, number: int) -> list[str]:
    return [line[number] for line in grid(made).lines]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bytes") / "runs"
    for seed in range(3):
        run = write_run(folder / f"run-{seed}", {"rounds": ROUNDS, "seed": seed}, curves(seed))
        rewrite(run, lambda record: record.update(bytes=sent(record["t"])))
    return folder


def test_megabytes_are_beside_the_rounds_in_every_file(runs, tmp_path):
    write_report([runs], tmp_path / "out", Measure(target=TARGET))
    rounds = [reached(seed, "plain") for seed in range(3)]
    mean = np.mean([total(t) for t in rounds])
    shown = f"{np.mean(rounds):.0f}, {megabytes(mean)} MB"
    for ending in ("md", "tex"):
        text = (tmp_path / "out" / "tables" / f"runs.{ending}").read_text(encoding="utf-8")
        assert shown in text and "and MB until then" in text
    assert float(place(tmp_path / "out", ROW, "", "plain")["reached_bytes"]) == pytest.approx(mean)
    for seed in range(3):
        line = place(tmp_path / "out", ROW, "", "plain", str(seed))
        assert int(line["reached_bytes"]) == total(reached(seed, "plain"))
    entry = data_of(tmp_path / "out")["tables"][0]["entries"][0]
    assert entry["sent"] == [pytest.approx(mean), megabytes(mean)]


def test_where_one_seed_did_not_record_bytes_there_are_none_and_a_note_says_why(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    rewrite(tmp_path / "runs" / "run-1", lambda record: record.pop("bytes"))
    write_report([tmp_path / "runs"], tmp_path / "out", Measure(target=TARGET))
    line = place(tmp_path / "out", ROW, "", "plain")
    assert line["reached_bytes"] == ""
    assert place(tmp_path / "out", ROW, "", "plain", "0")["reached_bytes"] != ""
    text = (tmp_path / "out" / "tables" / "runs.md").read_text(encoding="utf-8")
    assert " MB |" not in text and "did not record them" in text


def test_a_run_whose_first_rounds_are_older_has_no_bytes(runs, tmp_path):
    shutil.copytree(runs / "run-0", tmp_path / "run")
    rewrite(tmp_path / "run", lambda r: r.pop("bytes") if r["t"] < 5 else None)
    write_report([tmp_path / "run"], tmp_path / "out", Measure(target=TARGET))
    assert "reached_bytes" not in (tmp_path / "out" / "data.csv").read_text(encoding="utf-8")
    assert "MB" not in (tmp_path / "out" / "tables" / "runs.md").read_text(encoding="utf-8")


def test_without_a_target_bytes_are_not_shown(runs, tmp_path):
    write_report([runs], tmp_path / "out")
    for name in ("data.csv", "tables/runs.md", "tables/runs.tex"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "MB" not in text and "reached_bytes" not in text


def test_a_comparison_has_megabytes_beside_the_rounds_if_any_run_recorded_them(runs, tmp_path):
    made = compare([runs], Measure(target=TARGET))
    assert grid(made).header[-2:] == ["rounds to 62 %", "MB sent"]
    for row, text in zip(made.rows, column(made, -1), strict=True):
        mean = np.mean([total(reached(seed, row.model)) for seed in range(3)])
        assert row.sent == pytest.approx(mean) and text == megabytes(mean)
    least = min(row.sent for row in made.rows)
    best = {(number, 9) for number, row in enumerate(made.rows) if row.sent == least}
    assert {place for place in grid(made).best if place[1] == 9} == best
    assert any("MB: " in sentence for sentence in caption(made))
    write_comparison(made, tmp_path / "out", "wima compare")
    line = compared(tmp_path / "out", "fedavg", "plain", "1")
    assert int(line["reached_bytes"]) == total(reached(1, "plain"))
    shutil.copytree(runs, tmp_path / "older")
    for run in (tmp_path / "older").iterdir():
        rewrite(run, lambda record: record.pop("bytes"))
    for seed in range(3):
        settings = {"rounds": ROUNDS, "seed": seed, "lr": 1}
        write_run(tmp_path / "mixed" / f"{seed}", settings, curves(seed))
    mixed = compare([runs, tmp_path / "mixed"], Measure(target=TARGET))
    assert column(mixed, -1).count("") == 2
    assert OLDER in caption(mixed)[0] and OLDER not in caption(made)[0]
    older = compare([tmp_path / "older"], Measure(target=TARGET))
    assert grid(older).header == grid(made).header[:-1] and isnan(older.rows[0].sent)
    assert not any("MB" in sentence for sentence in caption(older))


@pytest.mark.parametrize(
    ("count", "text"), [(9_652_720, "9.65"), (46_349_000, "46.3"), (1.2345e9, "1234"), (0, "0.00")]
)
def test_megabytes_have_three_digits(count, text):
    assert megabytes(count) == text and megabytes(float("nan")) == ""
