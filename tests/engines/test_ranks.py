"""Which clients a rank gets."""

from __future__ import annotations

import numpy as np
import pytest

from wima.simulation.engines.ranks import shared_out
from wima.simulation.options import LocalSGD


def test_long_visits_are_shared_out_first():
    costs = [3, 9, 4, 4, 3, 1]
    owners = shared_out(costs, 2)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in (0, 1)]
    assert loads == [sum(costs) / 2] * 2
    assert shared_out(costs, 1) == [0] * len(costs)
    assert shared_out([5], 3) == [0]


@pytest.mark.parametrize("given", [{}, {"steps": 4}, {"batch_size": "full", "epochs": 3}])
@pytest.mark.parametrize("last", ["fill", "short"])
def test_steps_are_counted_as_they_are_planned(given, last):
    sgd = LocalSGD(**given, last_batch=last)
    for n in (1, 9, 10, 25):
        plan = sgd.plan(n, np.random.default_rng(0))
        assert len(plan) == sgd.count(n)
        assert max(map(len, plan)) <= sgd.size(n)
