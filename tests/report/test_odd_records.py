"""Records whose extras are damaged or odd: read, or left out with the reason, never a crash."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.extras import add_extras, rewrite
from tests.helpers.reports import ROUNDS, curves, data_of
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.report.write import write_report

KEYS = ("bytes", "clients", "calibration", "finetuned")
ODD: list[Any] = [None, 5, "text", [], [1], {"plain": None}, {"plain": 3}, {"plain": [[1, 2]]}]
ODD += [{"plain": {"mean": 0.5}}, {"down": None, "up": 1}, {"down": -1, "up": 1}, {"down": 1}]
ODD += [{"plain": {"before": {}}}, {"plain": [[0, None, 0.5]]}, {"plain": [["1", 0.5, 0.5]]}]
INSIDE: list[tuple[str, Any]] = [("mean", "high"), ("mean", [0.5]), ("quantiles", [0.5] * 20)]
INSIDE += [("quantiles", [[0.5]] * 21), ("count", 0), ("count", None), ("gained", -1)]
INSIDE += [("lost", "many"), ("worst", True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    made = write_run(folder / "run", {"rounds": ROUNDS}, curves(0))
    add_extras(made, 0, ROUNDS)
    return made


def with_last(run: Path, copy: Path, change: Callable[[dict], None]) -> Path:
    """A copy of a run in which the last record is changed."""
    shutil.copytree(run, copy)
    rewrite(copy, lambda record: change(record) if record["t"] == ROUNDS else None)
    return copy


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_run_with_an_odd_value_is_read_or_left_out_with_the_reason(run, tmp_path, key, odd):
    with_last(run, tmp_path / "in" / "run", lambda record: record.update({key: odd}))
    shutil.copytree(run, tmp_path / "in" / "good")
    settings = tmp_path / "in" / "good" / "settings.toml"
    settings.write_text(settings.read_text().replace("seed = 0", "seed = 1"))
    done = write_report([tmp_path / "in"], tmp_path / "out", Measure(target=0.6))
    assert done.runs + len(done.omitted) == 2
    assert all("its records are damaged: " in item.reason for item in done.omitted)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("name", "odd"), INSIDE)
def test_so_is_one_with_an_odd_summary(run, tmp_path, name, odd):
    def of_clients(record: dict) -> None:
        record["clients"]["wima10"][name] = odd

    def of_tuned(record: dict) -> None:
        record["finetuned"]["wima10"]["after"][name] = odd

    shutil.copytree(run, tmp_path / "in" / "good")
    for number, change in enumerate((of_clients, of_tuned)):
        with_last(run, tmp_path / "in" / f"run-{number}", change)
    done = write_report([tmp_path / "in"], tmp_path / "out")
    assert done.runs + sum("damaged" in item.reason for item in done.omitted) >= 2


def test_the_report_on_the_others_is_complete(run, tmp_path, no_figures):
    shutil.copytree(run, tmp_path / "in" / "good")
    with_last(run, tmp_path / "in" / "odd", lambda record: record.update(clients={"plain": 1}))
    report = write_report([tmp_path / "in"], tmp_path / "out", Measure(target=0.6))
    assert report.runs == 1 and [Path(item.path).name for item in report.omitted] == ["odd"]
    assert (tmp_path / "out" / "tables" / "runs-clients.csv").is_file()


def test_what_is_not_finite_is_an_empty_cell(run, tmp_path, no_figures):
    def change(record: dict) -> None:
        record["clients"]["wima10"].update(mean=None, worst=None, quantiles=[None] * 21)

    write_report([with_last(run, tmp_path / "run", change)], tmp_path / "out")
    table = (tmp_path / "out" / "tables" / "runs-clients.csv").read_text(encoding="utf-8")
    assert "nan" not in table and table.splitlines()[2].startswith('"wima10",,,')
    json.dumps(data_of(tmp_path / "out"), allow_nan=False)
