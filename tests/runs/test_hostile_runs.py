"""Run folders, sheets and manifests that anybody may have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers.reports import ROUNDS, curves
from tests.helpers.run_folders import write_run
from wima.cli.reports import runs_table
from wima.core.errors import RunError, UsageError
from wima.experiments.sheet import read_sheet
from wima.report.inputs import gather
from wima.report.write import read_notes
from wima.runs.folder import check_free
from wima.runs.run import read_run, seconds_of
from wima.storage.manifests import find, read_manifest
from wima.storage.segments import Segments

DEEP = "[" * 100_000
INFINITE = '{"t": 1, "seconds": Infinity}'
DIGITS = "1" + "0" * 400  # no float can hold it


@pytest.fixture
def run(tmp_path) -> Path:
    write_run(tmp_path / "runs" / "run", {"rounds": ROUNDS}, curves(0))
    return tmp_path / "runs" / "run"


def record(value: str) -> str:
    return (
        f'{{"t": 1, "cohort": [0], "lr": 0.1, "metrics": {{"plain": {{"accuracy": {value}}}}}}}\n'
    )


@pytest.mark.parametrize("value", [DIGITS, '"0.5"', "[0.5]", "true", "{}"])
def test_a_record_whose_metric_is_no_number_is_refused(run, value):
    (run / "records.jsonl").write_text(record(value))
    with pytest.raises(UsageError, match="is damaged in line 1: ValueError: invalid record"):
        read_run(run).curve("plain", "accuracy")
    runs_table(run.parent)
    assert gather([run.parent], "accuracy").omitted


@pytest.mark.parametrize("value", ["0.5", "1", "null", "NaN"])
def test_numbers_and_their_absence_are_read(run, value):
    (run / "records.jsonl").write_text(record(value) + "{ incomplete")
    assert len(read_run(run).records) == 1


def test_a_file_without_newlines_is_not_read_into_memory(run):
    with (run / "records.jsonl").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(UsageError, match="a line of more than"):
        read_run(run).curve("plain", "accuracy")
    (run / "records.jsonl").write_text(record("0.5"))
    for name in ("status.json", "environment.json", "settings.toml"):
        with (run / name).open("wb") as file:
            file.truncate(2**40)
        with pytest.raises(UsageError, match=r"1,099,511,627,776 bytes|is damaged"):
            read_run(run)
        with pytest.raises(UsageError, match="already exists"):
            check_free(run)


@pytest.mark.parametrize("name", ["status.json", "environment.json", "records.jsonl"])
def test_nesting_without_end_is_refused(run, name):
    (run / name).write_text(DEEP + "\n")
    with pytest.raises(UsageError, match=r"is damaged.*: RecursionError"):
        read_run(run).curve("plain", "accuracy")
    with pytest.raises(UsageError, match="already exists"):
        check_free(run)


@pytest.mark.parametrize("line", [f'{{"t": 1, "seconds": {DIGITS}}}', DEEP, "{}", "\0", INFINITE])
def test_damaged_times_are_left_out_of_a_report(run, line):
    (run / "times.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match=r"times\.jsonl is damaged"):
        seconds_of(run)
    (trace,) = gather([run], "accuracy").runs.values()
    assert trace.seconds is None


def test_pipes_are_refused_at_once(run, tmp_path):
    for path in (run / "times.jsonl", tmp_path / "a.sheet.json", tmp_path / "000000001.json"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    assert len(gather([tmp_path], "accuracy").omitted) == 1  # the sheet
    assert find(Segments(tmp_path))[1]
    with pytest.raises(UsageError, match="Cannot read"):
        read_sheet(tmp_path / "a.sheet.json")
    with pytest.raises(UsageError, match="Cannot read"):
        read_notes(tmp_path / "a.sheet.json")


def test_a_sheet_of_any_depth_is_refused(tmp_path):
    (tmp_path / "a.sheet.json").write_text(DEEP)
    with pytest.raises(UsageError, match="is not a valid sheet"):
        read_sheet(tmp_path / "a.sheet.json")


def test_a_manifest_of_any_depth_is_skipped(tmp_path):
    path = tmp_path / "000000001.json"
    path.write_text(f"{DEEP}\nsum\n")
    with pytest.raises(RunError, match="is damaged"):
        read_manifest(path, 1)
    found, wrong = find(Segments(tmp_path))
    assert not found and "is damaged" in wrong[0]


def test_texts_in_place_of_choices_are_refused(cli, tmp_path):
    (tmp_path / "a.toml").write_text('algorithm = "fedprox:mu"\n')
    code, out, err = cli("run", "a.toml", "algorithm.mu=1")
    assert code == 2 and "expected key=value, got 'mu'" in err and "Traceback" not in out + err
