"""Summaries of the values of clients."""

from __future__ import annotations

from math import floor, sqrt

import numpy as np
import pytest

from wima.core.statistics import summary


def naive_quantile(values: list[float], share: float) -> float:
    """Between neighbours of the sorted values, linearly."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = min(floor(place), len(ordered) - 2)
    return ordered[low] + (place - low) * (ordered[low + 1] - ordered[low])


@pytest.mark.parametrize("count", [2, 9, 10, 19, 20, 405])
def test_a_summary_equals_the_naive_computation(count: int) -> None:
    values = np.random.default_rng(count).random(count).tolist()
    mean = sum(values) / count
    worst = sorted(values)[: max(1, count // 10)]
    found = summary(values)
    assert found == {
        "mean": pytest.approx(mean),
        "deviation": pytest.approx(sqrt(sum((v - mean) ** 2 for v in values) / count)),
        "worst": pytest.approx(sum(worst) / len(worst)),
        "quantiles": pytest.approx([naive_quantile(values, i / 20) for i in range(21)]),
        "count": count,
    }
    assert found["quantiles"] == np.quantile(values, np.arange(21) / 20).tolist()


def test_one_client_is_its_own_mean_worst_and_quantiles() -> None:
    assert summary([0.25]) == {
        "mean": 0.25,
        "deviation": 0.0,
        "worst": 0.25,
        "quantiles": [0.25] * 21,
        "count": 1,
    }


def test_gained_and_lost_are_counted_client_by_client_without_ties() -> None:
    plain = [0.5, 0.9, 0.3, 0.7, 0.1]
    found = summary([0.6, 0.8, 0.3, 0.8, 0.2], plain)
    assert (found["gained"], found["lost"], found["count"]) == (3, 1, 5)
    same = summary(plain, plain)
    assert (same["gained"], same["lost"]) == (0, 0)
    assert set(found) - set(summary(plain)) == {"gained", "lost"}
