"""Which runs are in which table of a report, and in which order."""

from __future__ import annotations

import json

import pytest

from tests.helpers.extras import rewrite
from tests.helpers.reports import COLUMN, OTHER, ROUNDS, curves, data_of, make_sheet, numbers, place
from tests.helpers.run_folders import write_run
from wima.core.errors import UsageError
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, write_sheet
from wima.report.inputs import gather
from wima.report.table import sheet_table
from wima.report.write import make_tables, write_report

pytestmark = pytest.mark.usefixtures("no_figures")


def test_rows_and_columns_of_which_nothing_was_started_are_not_shown(tmp_path):
    models = {"plain": "plain", "WIMA": "wima10"}
    write_run(tmp_path / "pool" / "there", {"rounds": ROUNDS}, curves(0), "done")
    there = Cell("FedAvg", COLUMN, 0, "there", models)
    gone = [Cell(row, OTHER, 0, "gone", models) for row in ("FedAvg", "SCAFFOLD")]
    write_sheet(make_sheet([there, *gone]), tmp_path / "pool")
    write_report([tmp_path / "pool"], tmp_path / "out")
    shown = {(line["row"], line["column"]) for line in numbers(tmp_path / "out")}
    assert shown == {("FedAvg", COLUMN)}
    assert OTHER not in (tmp_path / "out" / "tables" / "sota.md").read_text(encoding="utf-8")


def test_runs_that_differ_only_in_the_seed_are_one_row(tmp_path):
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            settings = {
                "rounds": ROUNDS,
                "lr": lr,
                "seed": seed,
                "engine": ("serial", "auto")[seed],
            }
            write_run(tmp_path / "in" / f"{lr}-{seed}", settings, curves(seed))
    write_report([tmp_path / "in"], tmp_path / "out")
    table = data_of(tmp_path / "out")["tables"][0]
    assert table["rows"] == ["fedavg on digits, lr=0.1", "fedavg on digits, lr=0.2"]
    assert table["headings"] == ["plain", "wima10"]
    assert {entry["basis"] for entry in table["entries"]} == {"2 seeds"}


def test_the_same_run_twice_counts_once(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, {"rounds": ROUNDS}, curves(0))
    done = write_report([tmp_path / "a", tmp_path / "b", tmp_path / "a"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["seeds"] == "1"
    assert [item.reason for item in done.omitted] == [f"the same settings and seed as {tmp_path}/a"]


def test_a_sheet_file_stands_for_its_runs(pool, tmp_path):
    write_run(pool.parent / "another" / "run", {"rounds": ROUNDS}, curves(0))
    done = write_report([pool / "sota.sheet.json"], tmp_path / "out")
    assert done.runs == 7 and len(done.tables) == 1 and not done.omitted


def test_the_papers_tables_stand_before_its_figures_and_those_before_our_own(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    cells = [Cell("FedAvg", COLUMN, 0, "run", {"plain": "plain", "WIMA": "wima10"})]
    shown = {"a": "", "b": "Figure 2", "c": "Table 4", "d": "Table 2"}
    for name, where in shown.items():
        write_sheet(make_sheet(cells, name=name, shown=where), tmp_path)
    done = write_report([tmp_path], tmp_path / "out")
    assert [table.sheet.name for table in done.tables] == ["d", "c", "b", "a"]


def test_a_sheet_of_which_no_run_is_there_is_refused(tmp_path):
    cell = Cell("a", "b", 0, "run", {"plain": "plain"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    with pytest.raises(UsageError, match="no runs"):
        write_report([tmp_path / "in"], tmp_path / "out")


def test_several_cells_may_share_a_run(tmp_path):
    made = curves(0)
    write_run(tmp_path / "run", {"rounds": ROUNDS}, {**made, "wima20": made["wima10"] + 0.01})
    cells = [
        Cell(f"W = {w}", "digits", 0, "run", {"plain": "plain", "average": f"wima{w}"})
        for w in (10, 20)
    ]
    fields = {"rows": ["W = 10", "W = 20"], "columns": ["digits"], "headings": ["plain", "average"]}
    path = write_sheet(make_sheet(cells, name="window", **fields), tmp_path)
    found = gather([tmp_path], "accuracy")
    table = sheet_table(path.resolve(), next(iter(found.sheets.values())), found, Measure())
    means = [table.entries[f"W = {w}", "digits", "average"].mean for w in (10, 20)]
    assert means[1] - means[0] == pytest.approx(0.01)
    assert len(list(table.runs())) == 1
    assert len(make_tables(found, Measure())[0]) == 1  # no table of other runs


def test_a_sheet_of_regrets_is_skipped_with_the_script_that_shows_it(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    cells = [Cell("FedAvg", COLUMN, 0, "run", {"plain": "plain", "auto": "wima10"})]
    path = write_sheet(make_sheet(cells, name="auto", kind="regret"), tmp_path)
    done = write_report([tmp_path], tmp_path / "out")
    assert [item.path for item in done.omitted] == [str(path)]
    assert "examples/results/choosing_w.py" in done.omitted[0].reason
    assert [table.sheet.name for table in done.tables] == ["runs"]


@pytest.mark.parametrize(("stated", "sign"), [("lower", -1), ("higher", 1), (None, 1)])
def test_the_direction_of_a_metric_is_what_its_runs_say(tmp_path, stated, sign):
    run = write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    rewrite(
        run, lambda record: [own.update(rmse=own["loss"]) for own in record["metrics"].values()]
    )
    if stated:
        path = run / "environment.json"
        known = {**json.loads(path.read_text()), "directions": {"rmse": stated}}
        path.write_text(json.dumps(known))
    write_report([tmp_path / "run"], tmp_path / "out", Measure("rmse"))
    assert data_of(tmp_path / "out")["measure"]["sign"] == sign
    assert Measure("rmse").sign == 1 and Measure("loss").sign == -1  # by their names
