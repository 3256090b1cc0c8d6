"""`wima compare`: levels, paired differences, intervals and corrected p-values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.helpers.comparisons import HEIGHTS, LAST, ROUNDS, level, noisy, numbers, write_method
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.report.compare import Comparison, caption, compare, grid, warnings

pytestmark = pytest.mark.usefixtures("no_figures")
SEEDS, MODELS = (0, 1, 2), ("plain", "wima5")
NUMBERS = ("mean", "deviation", "seeds", "pairs", "difference", "low", "high", "p", "p_holm")
NUMBERS += ("won", "lost")


@pytest.fixture
def three(tmp_path) -> Path:
    for method in HEIGHTS:
        write_method(tmp_path / "runs", method)
    return tmp_path / "runs"


def means(method: str, model: str, seeds=SEEDS, last: int = LAST) -> np.ndarray:
    return np.array([level(method, model, seed, last) for seed in seeds])


def naive_holm(ps: dict) -> dict:
    """The k-th smallest of m p-values times m - k + 1, but not below those before it."""
    corrected, before = {}, 0.0
    for place, (name, p) in enumerate(sorted(ps.items(), key=lambda item: item[1])):
        before = corrected[name] = max(before, min(1.0, p * (len(ps) - place)))
    return corrected


def row(comparison: Comparison, name: str):
    return next(row for row in comparison.rows if row.name == name)


def test_levels_differences_and_p_values_are_those_of_a_hand_computation(three, cli):
    assert cli("compare", "runs", "--out", "out")[0] == 0
    base = means("fedavg", "plain")
    others = [(m, model) for m in HEIGHTS for model in MODELS if (m, model) != ("fedavg", "plain")]
    paired = {name: stats.ttest_rel(means(*name), base) for name in others}
    holm = naive_holm({name: test.pvalue for name, test in paired.items()})
    for name, test in paired.items():
        found = {key: float(numbers(Path("out"), *name)[key]) for key in NUMBERS}
        low, high = test.confidence_interval(0.95)
        own = means(*name)
        assert found["mean"] == pytest.approx(own.mean())
        assert found["deviation"] == pytest.approx(own.std(ddof=1))
        assert found["difference"] == pytest.approx((own - base).mean())
        assert (found["low"], found["high"]) == pytest.approx((low, high))
        assert (found["p"], found["p_holm"]) == pytest.approx((test.pvalue, holm[name]))
        assert (found["won"], found["lost"]) == ((own > base).sum(), (own < base).sum())
        assert found["seeds"] == found["pairs"] == len(SEEDS)


def test_a_difference_is_marked_if_its_corrected_p_is_small(three):
    made = compare([three], Measure())
    for one in made.rows:
        if one.gain:
            assert one.gain.marked == (one.gain.holm <= 0.05)
    assert {one.gain.marked for one in made.rows if one.gain} == {True, False}


def test_pairing_removes_what_the_seed_does_to_both(three):
    found = row(compare([three], Measure()), "scaffold/plain").gain
    unpaired = stats.ttest_ind(means("scaffold", "plain"), means("fedavg", "plain"))
    low, high = unpaired.confidence_interval(0.95)
    assert found.half < (high - low) / 2


def test_of_a_loss_less_is_better(three):
    made = compare([three], Measure("loss"))
    own, base = (2 - 2 * means(method, "plain") for method in ("scaffold", "fedavg"))
    found = row(made, "scaffold/plain")
    assert (made.won(found), made.won(found, -1)) == ((own < base).sum(), (own > base).sum())
    assert found.gain.mean == pytest.approx((own - base).mean()) and made.won(found) > made.won(
        found, -1
    )
    least = min(range(len(made.rows)), key=lambda number: made.rows[number].mean)
    assert {number for number, column in grid(made).best if column == 2} == {least}


def test_the_last_rounds_can_be_chosen(three):
    found = row(compare([three], Measure(last=3)), "scaffold/plain")
    assert found.mean == pytest.approx(means("scaffold", "plain", last=3).mean())


def test_rounds_to_a_target_are_a_mean_only_if_every_seed_reaches_it(three, cli):
    target = sorted(noisy("fedavg", seed)["plain"].max() for seed in SEEDS)[1]
    code, out, _ = cli("compare", "runs", "--target", str(target), "--out", "out")
    firsts = {}
    for method in HEIGHTS:
        there = [np.flatnonzero(noisy(method, seed)["plain"] >= target) for seed in SEEDS]
        firsts[method] = [int(rounds[0]) + 1 for rounds in there if len(rounds)]
    assert len(firsts["scaffold"]) == 3 and len(firsts["fedavg"]) == 2
    reached = numbers(Path("out"), "scaffold", "plain")["reached"]
    assert code == 0 and float(reached) == pytest.approx(np.mean(firsts["scaffold"]))
    assert numbers(Path("out"), "fedavg", "plain")["reached"] == ""
    assert "2 of 3 seeds" in out


def test_one_seed_gives_a_difference_without_interval_and_says_so(tmp_path, cli):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path / "runs", method, seeds=[4])
    code, out, _ = cli("compare", "runs", "--out", "out")
    assert code == 0 and "One seed says nothing about others." in out and "95 %" not in out
    found = numbers(Path("out"), "scaffold", "plain")
    expected = level("scaffold", "plain", 4) - level("fedavg", "plain", 4)
    assert float(found["difference"]) == pytest.approx(expected)
    assert found["low"] == found["high"] == found["p"] == found["p_holm"] == ""
    for ending in ("md", "tex"):
        text = Path(f"out/compare.{ending}").read_text()
        assert "One seed says nothing about others." in text and "Holm" not in text.split("---")[-1]


def test_seeds_of_one_method_only_are_named_and_not_paired(tmp_path):
    write_method(tmp_path, "fedavg", seeds=(0, 1, 2))
    write_method(tmp_path, "scaffold", seeds=(1, 2, 3))
    made = compare([tmp_path], Measure())
    found = row(made, "scaffold/plain").gain
    both = stats.ttest_rel(means("scaffold", "plain", (1, 2)), means("fedavg", "plain", (1, 2)))
    assert found.size == 2 and found.p == pytest.approx(both.pvalue)
    told = " ".join(warnings(made))
    rows = "scaffold/plain; scaffold/wima5."
    assert f"as fedavg/plain lacks them: seeds 3 of {rows}" in told
    assert f"seeds 0 of fedavg/plain, which are missing in {rows}" in told


def test_methods_without_a_common_seed_have_no_difference(tmp_path):
    write_method(tmp_path, "fedavg", seeds=(0, 1))
    write_method(tmp_path, "scaffold", seeds=(2, 3))
    made = compare([tmp_path], Measure(), models=["plain"])
    assert row(made, "scaffold/plain").gain is None
    assert "Difference" not in " ".join(caption(made))


def test_other_settings_than_the_method_are_named(tmp_path):
    write_method(tmp_path, "fedavg")
    write_method(tmp_path, "scaffold", batch_size=20, rounds=44)
    told = " ".join(warnings(compare([tmp_path], Measure())))
    assert "Not a fair comparison" in told and "scaffold." in told
    assert "rounds (44, not 40)" in told and "batch_size (20, not 10)" in told
    assert "engine" not in told


def test_a_method_with_a_diverged_run_has_no_number_and_the_run_is_named(tmp_path, cli):
    write_method(tmp_path / "runs", "fedavg")
    write_method(tmp_path / "runs", "scaffold", seeds=(0, 1))
    write_method(tmp_path / "runs", "scaffold", seeds=[2], state="diverged")
    code, out, _ = cli("compare", "runs", "--model", "plain", "--out", "out")
    assert code == 0 and "N/A" in out and "2 of 3" in out
    where = str(Path("runs/scaffold-s2"))
    assert f"Diverged: scaffold, seed 2, {ROUNDS // 2}/{ROUNDS} rounds: {where}" in out
    found = numbers(Path("out"), "scaffold", "plain")
    assert found["mean"] == found["difference"] == ""
    assert numbers(Path("out"), "scaffold", "plain", "2")["state"] == "diverged"
    assert "Diverged" in Path("out/compare.md").read_text()
    code, out, _ = cli("compare", "runs", "--baseline", "scaffold")
    assert code == 0 and "scaffold/plain has no number, so there are no differences" in out


def test_a_run_that_diverged_before_any_evaluation_is_named(tmp_path):
    write_method(tmp_path, "fedavg")
    settings = {"rounds": ROUNDS, "algorithm": "scaffold"}
    write_run(tmp_path / "early", settings, {}, "diverged")
    made = compare([tmp_path], Measure())
    assert any("Diverged: scaffold, seed 0, 0/" in told for told in warnings(made))


def test_unfinished_runs_do_not_count_and_are_named(tmp_path, cli):
    write_method(tmp_path / "runs", "fedavg")
    write_method(tmp_path / "runs", "scaffold", seeds=(0, 1))
    write_method(tmp_path / "runs", "scaffold", seeds=[2], state="interrupted")
    write_method(tmp_path / "runs", "fedprox", seeds=[0], state="interrupted")
    code, out, _ = cli("compare", "runs")
    assert code == 0 and "Not counted, interrupted: scaffold, seed 2, 20/40 rounds: " in out
    assert "2 of 3" in out and "0 of 1" in out
    found = row(compare([Path("runs")], Measure()), "scaffold/plain")
    assert found.mean == pytest.approx(means("scaffold", "plain", (0, 1)).mean())


def test_equal_differences_have_no_p_and_the_caption_says_why(tmp_path):
    for method, height in (("fedavg", 0.5), ("scaffold", 0.52)):
        for seed in (0, 1):
            values = {"plain": np.full(ROUNDS, height + seed / 10)}
            write_run(tmp_path / f"{method}-{seed}", {"algorithm": method, "seed": seed}, values)
    made = compare([tmp_path], Measure())
    assert made.tests == 0 and not any("†" in cell for line in grid(made).lines for cell in line)
    assert grid(made).lines[1][4:7] == ["+2.00", "", ""]
    assert any("all differences are equal" in line for line in caption(made))
