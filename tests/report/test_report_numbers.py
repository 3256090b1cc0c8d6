"""The numbers of a report come from the run folders, whatever state the runs are in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.reports import (
    AVERAGE,
    COLUMN,
    LAST,
    OTHER,
    ROUNDS,
    curves,
    data_of,
    make_sheet,
    place,
)
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.core.statistics import last_rounds
from wima.experiments.sheet import Cell, printed, write_sheet
from wima.report.write import write_report
from wima.runs.launch import launch
from wima.runs.settings import make_settings

pytestmark = pytest.mark.usefixtures("no_figures")


def test_a_number_is_the_mean_over_the_last_rounds_then_over_seeds(report):
    means = [curves(seed)["wima10"][-LAST:].mean() for seed in range(3)]
    line = place(report, "FedAvg", COLUMN, AVERAGE)
    assert float(line["mean"]) == pytest.approx(np.mean(means))
    assert float(line["deviation"]) == pytest.approx(np.std(means, ddof=1))
    assert line["seeds"] == "3"
    for seed, mean in enumerate(means):
        own = place(report, "FedAvg", COLUMN, AVERAGE, str(seed))
        assert float(own["mean"]) == pytest.approx(mean)


def test_gain_is_paired_over_seeds_or_over_the_rounds_of_one(report):
    pairs = [curves(s) for s in range(3)]
    gains = [(c["wima10"] - c["plain"])[-LAST:].mean() for c in pairs]
    several, single = (place(report, row, COLUMN, AVERAGE) for row in ("FedAvg", "SCAFFOLD"))
    assert float(several["gain"]) == pytest.approx(np.mean(gains))
    assert (several["gain_basis"], several["gain_size"]) == ("seeds", "3")
    assert (single["gain_basis"], single["gain_size"]) == ("rounds", str(LAST))
    assert float(single["gain_half"]) > 0


def test_ours_stands_beside_the_papers_with_the_difference(report):
    paper = printed("sota", "FedAvg", COLUMN, "WIMA")
    ours = 100 * np.mean([curves(seed)["wima10"][-LAST:].mean() for seed in range(3)])
    difference = f"{ours - paper.value:+.2f}".replace("-", "\N{MINUS SIGN}")
    table = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    assert f"{ours:.2f} ± " in table and f"({paper.value:.2f}, {difference})" in table
    entry = next(e for e in data_of(report)["tables"][0]["entries"] if e["at"] == [0, 0, 1])
    assert entry["paper"] == paper.value and entry["mean"] == pytest.approx(ours, abs=1e-3)
    assert entry["remark"] == paper.remark != ""


def test_what_is_missing_unfinished_or_diverged_says_so(report):
    assert place(report, "FedAvg", OTHER, AVERAGE)["state"] == "-"
    assert place(report, "SCAFFOLD", OTHER, AVERAGE)["state"] == f"20/{ROUNDS} rounds"
    assert place(report, "FedDyn", COLUMN, "plain")["state"] == "N/A"
    table = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    for text in (f"20/{ROUNDS} rounds", "N/A (N/A)", "3 seeds", "1 of 2 seeds", "1 of 1 diverged"):
        assert text in table


def test_stability_target_and_forgetting_are_in_the_data(report):
    plain = curves(0)["plain"]
    line = place(report, "FedAvg", COLUMN, "plain", "0")
    assert float(line["jump"]) == pytest.approx(np.abs(np.diff(plain[-LAST:])).mean())
    best = np.maximum.accumulate(plain)
    assert float(line["forgetting"]) == pytest.approx((best - plain)[-LAST:].mean())
    assert int(line["reached"]) == int(np.argmax(plain >= 0.65)) + 1


def test_a_real_run_is_reported(tmp_path, capsys):
    settings = {"data": "digits", "clients": 20, "clients_per_round": 2, "rounds": 6}
    run = launch(make_settings({**settings, "window": 3, "engine": "serial"}), tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "out")
    _, values = run.curve("wima3", "accuracy")
    line = place(tmp_path / "out", "fedavg on digits", "", "wima3")
    assert float(line["mean"]) == pytest.approx(np.mean(values[-last_rounds(6) :]))
    assert data_of(tmp_path / "out")["runs"][0]["seconds"] > 0


def test_a_loss_is_better_if_it_is_less(pool, tmp_path):
    write_report([pool], tmp_path / "out", Measure("loss"))
    data = data_of(tmp_path / "out")
    assert data["measure"]["sign"] == -1 and not data["measure"]["share"]
    assert "paper" not in data["tables"][0]["entries"][0]
    loss = [2 - 2 * curves(seed)["plain"][-LAST:].mean() for seed in range(3)]
    line = place(tmp_path / "out", "FedAvg", COLUMN, "plain")
    assert float(line["mean"]) == pytest.approx(np.mean(loss))


def test_last_on_the_command_line_goes_before_the_sheets(pool, tmp_path):
    write_report([pool], tmp_path / "out", Measure(last=5))
    means = [curves(seed)["plain"][-5:].mean() for seed in range(3)]
    assert float(place(tmp_path / "out", "FedAvg", COLUMN, "plain")["mean"]) == pytest.approx(
        np.mean(means)
    )


def test_a_diverged_seed_makes_the_mean_not_available(tmp_path):
    for seed, state in ((0, "done"), (1, "diverged")):
        write_run(tmp_path / "in" / str(seed), {"rounds": ROUNDS, "seed": seed}, curves(0), state)
    write_report([tmp_path / "in"], tmp_path / "out")
    entry = data_of(tmp_path / "out")["tables"][0]["entries"][0]
    assert (entry["text"], entry["basis"], entry["mean"]) == ("N/A", "1 of 2 diverged", None)


def test_a_done_run_without_the_model_or_late_evaluations_has_no_number(tmp_path):
    early = {"plain": curves(0)["plain"], "wima10": np.full(3, 0.5)}  # evaluated in three rounds
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, early)
    cell = Cell("a", "b", 0, "run", {"plain": "plain", "early": "wima10", "never": "wima99"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain", "early", "never"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    states = [place(tmp_path / "out", "a", "b", h)["state"] for h in names["headings"]]
    assert states == ["done", "-", "-"]


def test_a_run_that_diverged_at_once_is_not_available(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, {}, "diverged")
    write_report([tmp_path / "in"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["state"] == "N/A"


def test_a_run_whose_last_values_are_not_finite_is_not_available(tmp_path):
    broken = np.where(np.arange(ROUNDS) == ROUNDS - 3, np.nan, 0.5)
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, {"plain": broken})
    write_report([tmp_path / "in"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["state"] == "N/A"


def test_a_run_that_has_not_begun_is_shown_as_such(tmp_path):
    write_run(tmp_path / "in" / "new", {"rounds": ROUNDS}, {}, "running")
    write_report([tmp_path / "in"], tmp_path / "out")
    line = place(tmp_path / "out", "fedavg on digits", "", "plain")
    assert line["state"] == f"0/{ROUNDS} rounds"


@pytest.mark.parametrize(("rounds", "last"), [(1, 1), (7, 1), (60, 15), (400, 100), (1500, 100)])
def test_a_short_run_is_judged_by_its_last_quarter(rounds, last):
    assert last_rounds(rounds) == last
