"""The numbers of reports: each against its naive twin, intervals against simulation."""

from __future__ import annotations

import statistics
from itertools import pairwise
from math import isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import t as student_t, ttest_1samp, ttest_rel

from wima.core.statistics import LEAST, RISK, holm, of_independent, of_series, student_margin
from wima.model_files.advise import compare
from wima.model_files.mean import Window
from wima.report.statistics import (
    Curve,
    corrected,
    forgetting,
    gain,
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
    assert isnan(gain([0.1], "seeds").half)
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
    ours = gain(list(average - plain), "seeds")
    low, high = ttest_rel(average, plain).confidence_interval(0.95)
    assert (ours.mean - ours.half, ours.mean + ours.half) == pytest.approx((low, high))
    assert (ours.basis, ours.size) == ("seeds", 5)


def test_pairing_removes_what_the_seed_does_to_both():
    seeds = np.array([0.2, 0.5, 0.8])
    gains = np.array([0.02, 0.03, 0.04])
    ours = gain(list((seeds + gains) - seeds), "seeds")
    assert ours.mean == pytest.approx(0.03)
    assert ours.half == pytest.approx(student_margin(gains))


def naive_half(differences: np.ndarray) -> float:
    """Half the interval from the rounds of one run, word by word."""
    size, more = divmod(len(differences), 10)  # the first stretches are one longer
    begins = [k * size + min(k, more) for k in range(11)]
    means = [statistics.mean(differences[a:b].tolist()) for a, b in pairwise(begins)]
    away = [mean - statistics.mean(means) for mean in means]
    r = sum(a * b for a, b in pairwise(away)) / sum(a * a for a in away)
    rho = max(0, r + (1 + 4 * r) / 10 + 0.5 / sqrt(10))
    count = max(2.5, 10 * (1 - rho) / (1 + rho))
    return student_t.ppf(0.975, count - 1) * statistics.pstdev(means) / sqrt(count - 1)


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_gain_over_rounds_equals_its_naive_twin(memory):
    for differences in autoregressive(memory, length=52, count=20):
        ours = gain(differences, "rounds")
        assert ours.mean == pytest.approx(differences.mean())
        assert ours.half == pytest.approx(naive_half(differences))
        assert (ours.basis, ours.size) == ("rounds", 52)


def test_too_few_rounds_give_no_interval():
    assert isnan(gain(np.zeros(LEAST - 1), "rounds").half)
    assert isnan(gain(np.zeros(0), "rounds").mean)


@pytest.mark.parametrize(
    ("differences", "basis"),
    [
        ([0.71 - 0.70, 0.52 - 0.51], "seeds"),  # equal but for rounding
        ([0.0, 0.0, 0.0], "seeds"),
        (np.full(LEAST, 0.1) + 0.2, "rounds"),
        (1e3 + np.array([0.3, 0.1 + 0.2]) - 1e3, "seeds"),
    ],
)
def test_equal_differences_have_no_interval_and_no_mark(differences, basis):
    ours = gain(differences, basis)
    assert ours.is_constant and isnan(ours.half) and isnan(ours.p)
    least = gain([0.1, 0.1001, 0.1002, 0.1003], "seeds")
    assert [one.marked for one in corrected([ours, least])] == [False, True]
    assert corrected([ours, least])[1].holm == pytest.approx(least.p)  # one test, not two


def test_gains_that_lack_an_interval_for_other_reasons_are_not_constant():
    for short in (gain([0.1], "seeds"), gain(np.zeros(LEAST - 1), "rounds")):
        assert isnan(short.half) and not short.is_constant
    assert not gain([0.1, 0.2], "seeds").is_constant
    assert not gain([0.1, nan], "seeds").is_constant


def false_positives(seeds: int, examples: int, deviation: float, count: int = 2000) -> float:
    """How often two methods without a true difference differ with p <= 5 %.

    The accuracy of each seed deviates so much, and is a multiple of 1 / examples.
    """
    rng = np.random.default_rng([seeds, examples])
    levels = rng.normal(0.7, deviation, size=(2, count, seeds))
    own, base = np.round(levels * examples) / examples
    return sum(gain(row, "seeds").p <= RISK for row in own - base) / count


@pytest.mark.parametrize("deviation", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("examples", [100, 360, 10_000])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_coarse_metrics_give_no_more_false_positives_than_promised(seeds, examples, deviation):
    assert false_positives(seeds, examples, deviation) <= 0.062  # 0.05 and 2.5 standard errors


def test_p_is_that_of_the_t_test():
    values = np.random.default_rng(3).normal(0.3, 1, size=12)
    assert of_independent(values).p == pytest.approx(ttest_1samp(values, 0).pvalue)
    assert isnan(of_independent([0.0, 0.0]).p) and isnan(of_independent([0.5, 0.5]).p)
    assert isnan(of_independent([0.5]).p)


@pytest.mark.parametrize("estimate", [of_independent, of_series])
def test_an_interval_excludes_zero_if_p_is_below_its_risk(estimate):
    for values in np.random.default_rng(4).normal(0.3, 1, size=(50, LEAST)):
        found = estimate(values)
        assert (abs(found.mean) > found.margin(0.05)) == (found.p < 0.05)


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_the_least_p_values_up_to_the_first_that_is_too_large(ps, risk):
    rejected = 0
    for left, p in zip(range(len(ps), 0, -1), sorted(ps), strict=True):
        if left * p > risk:
            break
        rejected += 1
    found = holm(ps)
    assert sum(p <= risk for p in found) == rejected
    assert all(a >= b for a, b in zip(found, ps, strict=True))


def autoregressive(memory: float, length: int, count: int) -> np.ndarray:
    """Stationary series x_t = memory · x_{t-1} + noise around zero, one per row."""
    rng = np.random.default_rng(12)
    series = np.empty((count, length))
    series[:, 0] = rng.normal(size=count) / sqrt(1 - memory**2)
    for t in range(1, length):
        series[:, t] = memory * series[:, t - 1] + rng.normal(size=count)
    return series


def noisy(memory: float, length: int, count: int) -> np.ndarray:
    """Such series with as much noise on top: the correlation is less, but as long."""
    slow = sqrt(1 - memory**2) * autoregressive(memory, length, count)
    return slow + np.random.default_rng(17).normal(size=slow.shape)


def moving(memory: int, length: int, count: int) -> np.ndarray:
    """Means of the last `memory` values of noise."""
    noise = np.random.default_rng(15).normal(size=(count, length + memory - 1))
    return sliding_window_view(noise, memory, axis=1).mean(axis=2)


def windowed(step: float, length: int, count: int, window: int = 20) -> np.ndarray:
    """The mean of the last 20 values of a random walk with noise, minus the last value."""
    rng = np.random.default_rng(16)
    shape = (count, length + window - 1)
    walk = step * rng.normal(size=shape).cumsum(axis=1) + rng.normal(size=shape)
    return sliding_window_view(walk, window, axis=1).mean(axis=2) - walk[:, window - 1 :]


def coverage(series: np.ndarray) -> float:
    """How often the interval of a row holds the true mean, zero."""
    intervals = [gain(row, "rounds") for row in series]
    return sum(abs(i.mean) <= i.half for i in intervals) / len(series)


@pytest.mark.parametrize("length", [30, 100, 300])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.9])
def test_interval_from_one_run_covers_correlated_rounds(memory, length):
    assert 0.92 <= coverage(autoregressive(memory, length, count=4000)) <= 0.98


@pytest.mark.parametrize(("length", "least"), [(30, 0.86), (100, 0.94)])
@pytest.mark.parametrize(
    ("series", "memory"),
    [(noisy, 0.9), (moving, 5), (moving, 20), (windowed, 0.1), (windowed, 0.4), (windowed, 1)],
)
def test_it_covers_rounds_of_other_correlation(series, memory, length, least):
    assert coverage(series(memory, length, count=2000)) >= least


def test_rounds_taken_as_independent_would_not_cover():
    half = [of_independent(row).margin() for row in autoregressive(0.5, 100, count=1000)]
    means = autoregressive(0.5, 100, count=1000).mean(axis=1)
    assert np.mean(np.abs(means) <= half) < 0.8


def test_advice_from_many_end_points_is_widened_for_their_correlation():
    gains = np.sin(np.arange(LEAST) / 5)
    for count, expected in ((LEAST, of_series(gains).margin()), (5, student_margin(gains[:5]))):
        values = {Window(1): [0.0] * count, Window(2): gains[:count].tolist()}
        assert compare(values, minimize=False)[1].margin == pytest.approx(expected)
    assert of_series(gains).margin() > 2 * student_margin(gains)


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
