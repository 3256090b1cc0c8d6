"""What the demo claims: window averages are better and calmer than the model they average."""

from __future__ import annotations

import numpy as np
import pytest

from wima.runs.build import build
from wima.runs.settings import load_settings

SEEDS, LAST = (0, 1, 2), 100
POINT = 0.01


def late_accuracies(seed: int) -> dict[str, np.ndarray]:
    """Model -> accuracy in each of the demo's last rounds; earlier ones need no evaluation."""
    rounds = load_settings("demo", []).rounds
    overrides = [f"seed={seed}", f"eval_every={rounds}", f"eval_last={LAST}"]
    with build(load_settings("demo", overrides)) as simulation:
        late = [record.metrics for record in simulation if record.metrics]
    assert len(late) == LAST
    return {model: np.array([metrics[model]["accuracy"] for metrics in late]) for model in late[0]}


@pytest.fixture(scope="module")
def accuracies() -> list[dict[str, np.ndarray]]:
    """For each seed."""
    return [late_accuracies(seed) for seed in SEEDS]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("average", ["wima50", "wima-auto"])
def test_the_demos_averages_are_a_point_better_than_the_plain_model(accuracies, average):
    gains = [run[average].mean() - run["plain"].mean() for run in accuracies]
    assert np.mean(gains) >= POINT


@pytest.mark.lab
@pytest.mark.slow
def test_the_demos_fixed_window_halves_the_deviation_from_round_to_round(accuracies):
    for run in accuracies:
        assert run["wima50"].std() <= run["plain"].std() / 2
