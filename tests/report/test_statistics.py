"""The numbers of reports: each against its naive twin, intervals against simulation."""

from __future__ import annotations

import statistics
from itertools import pairwise
from math import isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import t as student_t, ttest_rel

from wima.core.statistics import student_margin
from wima.report.statistics import (
    LEAST,
    Curve,
    forgetting,
    gain_over_rounds,
    gain_over_seeds,
    late,
    over_seeds,
    reached,
    score,
    thinned,
)

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def every_round(values) -> Curve:
    return Curve(np.arange(1, len(values) + 1), np.array(values, float))


def naive_score(values: list[float], last: int) -> list[float]:
    """Mean, deviation, jump and forgetting, word by word, for a model that is always evaluated."""
    end = len(values)
    recent = [v for t, v in enumerate(values, 1) if t > end - last]
    steps = [abs(b - a) for a, b in pairwise(recent)]
    behind = [max(values[:t]) - v for t, v in enumerate(values, 1) if t > end - last]
    jump = sum(steps) / len(steps) if steps else nan
    return [sum(recent) / len(recent), statistics.pstdev(recent), jump, sum(behind) / len(behind)]


@given(VALUES, st.integers(1, 80))
def test_score_equals_its_naive_twin(values, last):
    ours = score(every_round(values), len(values), last)
    assert list(ours[:4]) == pytest.approx(naive_score(values, last), nan_ok=True, abs=1e-12)
    assert ours.evaluations == min(last, len(values))


def test_late_rounds_are_counted_in_rounds_and_not_in_evaluations():
    curve = Curve(np.array([10, 20, 30, 40]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert late(curve, end=45, last=20).tolist() == [3.0, 4.0]


def test_a_run_without_late_evaluations_has_no_level():
    curve = Curve(np.array([10]), np.array([0.5]))
    ours = score(curve, end=100, last=20, target=0.4)
    assert isnan(ours.mean) and ours.evaluations == 0
    assert ours.reached == 10


def test_nothing_was_forgotten_on_a_curve_that_only_rises():
    assert forgetting(every_round([0.1, 0.2, 0.2, 0.5]), end=4) == 0


def test_forgetting_looks_back_beyond_the_last_rounds():
    values = [0.9, 0.5, 0.6, 0.7]
    expected = ((0.9 - 0.6) + (0.9 - 0.7)) / 2
    assert forgetting(every_round(values), end=4, last=2) == pytest.approx(expected)


def test_where_less_is_better_the_best_is_the_least():
    losses = [3.0, 1.0, 2.0]
    expected = ((3 - 3) + (1 - 1) + (2 - 1)) / 3
    assert forgetting(every_round(losses), end=3, sign=-1) == pytest.approx(expected)
    assert reached(every_round(losses), 1.5, sign=-1) == 2


def test_target_is_reached_at_the_first_evaluated_round_at_or_above_it():
    curve = Curve(np.array([5, 10, 15]), np.array([0.5, 0.8, 0.9]))
    assert reached(curve, 0.8) == 10
    assert reached(curve, 0.95) is None
    assert reached(curve, None) is None


def test_a_value_that_is_not_finite_reaches_no_target_and_spoils_the_mean():
    curve = every_round([nan, 0.9])
    assert reached(curve, 0.5) == 2
    assert isnan(score(curve, 2).mean)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=10))
def test_deviation_over_seeds_is_that_of_a_sample(means):
    mean, deviation = over_seeds(means)
    assert mean == pytest.approx(statistics.mean(means))
    assert deviation == pytest.approx(statistics.stdev(means), abs=1e-9)


def test_one_seed_has_a_mean_and_no_deviation():
    mean, deviation = over_seeds([0.7])
    assert mean == 0.7 and isnan(deviation)
    assert isnan(gain_over_seeds([0.1]).half)
    assert all(map(isnan, over_seeds([])))


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30, 1000])
def test_students_margin_has_the_two_sided_95_percent_quantile(freedom):
    values = np.arange(freedom + 1.0)
    error = values.std(ddof=1) / sqrt(len(values))
    assert student_margin(values) == pytest.approx(student_t.ppf(0.975, freedom) * error)


def test_gain_over_seeds_is_the_paired_t_test():
    rng = np.random.default_rng(0)
    plain = rng.normal(0.6, 0.1, size=5)
    average = plain + rng.normal(0.02, 0.01, size=5)
    ours = gain_over_seeds(list(average - plain))
    low, high = ttest_rel(average, plain).confidence_interval(0.95)
    assert (ours.mean - ours.half, ours.mean + ours.half) == pytest.approx((low, high))
    assert (ours.basis, ours.size) == ("seeds", 5)


def test_pairing_removes_what_the_seed_does_to_both():
    seeds = np.array([0.2, 0.5, 0.8])
    gain = gain_over_seeds(list((seeds + 0.03) - seeds))
    assert gain.mean == pytest.approx(0.03) and gain.half == pytest.approx(0, abs=1e-9)


def test_gain_over_rounds_is_the_interval_of_five_mean_values():
    rng = np.random.default_rng(1)
    differences = rng.normal(size=52)
    parts = [differences[2 + 10 * k : 12 + 10 * k].mean() for k in range(5)]  # 52 = 2 + 5 · 10
    half = student_t.ppf(0.975, 4) * statistics.stdev(parts) / sqrt(5)
    ours = gain_over_rounds(differences)
    assert ours.mean == pytest.approx(differences.mean())
    assert ours.half == pytest.approx(half)
    assert (ours.basis, ours.size) == ("rounds", 52)


def test_too_few_rounds_give_no_interval():
    assert isnan(gain_over_rounds(np.zeros(LEAST - 1)).half)
    assert isnan(gain_over_rounds(np.zeros(0)).mean)
    assert gain_over_rounds(np.zeros(LEAST)).half == 0


def autoregressive(memory: float, length: int, count: int) -> np.ndarray:
    """Stationary series x_t = memory · x_{t-1} + noise around zero, one per row."""
    rng = np.random.default_rng(2)
    series = np.empty((count, length))
    series[:, 0] = rng.normal(size=count) / sqrt(1 - memory**2)
    for t in range(1, length):
        series[:, t] = memory * series[:, t - 1] + rng.normal(size=count)
    return series


def coverage(memory: float, length: int = 100, count: int = 4000) -> float:
    """How often the interval holds the true mean, zero."""
    intervals = [gain_over_rounds(row) for row in autoregressive(memory, length, count)]
    return sum(abs(i.mean) <= i.half for i in intervals) / count


def naive_coverage(memory: float, length: int = 100, count: int = 4000) -> float:
    """The same for an interval that takes rounds as independent."""
    series = autoregressive(memory, length, count)
    half = student_t.ppf(0.975, length - 1) * series.std(axis=1, ddof=1) / sqrt(length)
    return float(np.mean(np.abs(series.mean(axis=1)) <= half))


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.94), (0.5, 0.935), (0.8, 0.915)])
def test_interval_from_one_run_covers_correlated_rounds(memory, least):
    found = coverage(memory)
    assert least <= found <= 0.96
    if memory:
        assert naive_coverage(memory) < 0.8


def test_coverage_gets_better_with_more_rounds():
    assert coverage(0.9, length=100) < coverage(0.9, length=500)
    assert coverage(0.9, length=500, count=2000) > 0.92


@given(st.lists(st.floats(0, 1) | st.just(nan), min_size=1, max_size=300), st.integers(2, 60))
def test_thinned_curves_keep_ends_and_extremes(values, points):
    curve = every_round(values)
    thin = thinned(curve, points)
    assert len(thin.values) <= points + 3
    assert (thin.rounds[0], thin.rounds[-1]) == (1, len(values))
    assert np.all(np.diff(thin.rounds) > 0)
    known = [v for v in values if not isnan(v)]
    if known:
        assert np.nanmin(thin.values) == min(known) and np.nanmax(thin.values) == max(known)
    assert all(
        a == b or (isnan(a) and isnan(b))
        for a, b in zip(thin.values, curve.values[thin.rounds - 1], strict=True)
    )
