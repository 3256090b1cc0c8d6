"""What a user's function may not return, and what an averager may not do: a sentence names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima.core.errors import RunError, UsageError

OPTIONS: dict[str, Any] = {"rounds": 2, "clients_per_round": 3}


def task(**options: Any) -> wima.Task:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 3, 60)
    data = wima.FederatedData(x, y, np.arange(0, 61, 10))
    return wima.make_task(lambda: nn.Linear(4, 3), data, (x, y), **options)


@pytest.mark.parametrize("name", ["w/2", "../x", "..", ".x", "", "a\0b", "a\nb", "x" * 101, 3])
def test_an_average_whose_name_is_no_file_name_is_refused_before_anything_is_written(
    name: Any, tmp_path
):
    averagers = {name: wima.WIMA(2)}
    with pytest.raises(UsageError, match=r"cannot name an average: use .*do not begin with a dot"):
        wima.run(task(), averagers=averagers, out=tmp_path / "runs/run", **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_names_that_the_package_makes_and_plain_words_are_taken(tmp_path):
    averagers: list[wima.Averager] = [
        wima.WIMA(0.1, buckets=2),
        wima.WIMA("auto"),
        wima.WIMA(2, part="classifier"),
        wima.EMA(1e-05, begin="debiased"),
        wima.PowerEMA(0.1),
        wima.SWA(0.5, cycle=1, phase="izmailov"),
        wima.LAWA(2, 1),
    ]
    named = {a.name: a for a in averagers} | {"Mittel über 2, (W = 2)": wima.WIMA(2)}
    run = wima.run(task(), averagers=named, out=tmp_path / "run", **OPTIONS)
    assert set(run.models) == {"plain", *named}


class InPlace(wima.Averager):
    """Changes the model where the test says."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.needs_gradient = where == "gradient"

    def init(self, w):
        return w.clone()

    def use_gradient(self, state, gradient):
        gradient.mul_(0.5)
        return state

    def update(self, state, w, past):
        if self.where == "update":
            w.mul_(0.5)
        return w

    def value(self, state):
        return state.mul_(0.5) if self.where == "value" else state


@pytest.mark.parametrize("where", ["update", "value", "gradient"])
def test_an_averager_that_changes_the_model_is_refused_by_name(where):
    with pytest.raises(UsageError, match=r"averager 'mine' changed the model or the gradient in"):
        wima.run(task(), averagers={"mine": InPlace(where)}, **OPTIONS)


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize(
    "value", ["good", "5", None, torch.ones(2), (1, 2, 3), (torch.ones(2), 1)], ids=repr
)
def test_a_metric_that_returns_no_number_is_named(value, engine):
    odd = task(metrics={"mine": lambda output, y: value})
    workers = 2 if engine == "processes" else None
    with pytest.raises((UsageError, RunError), match=r"The metric mine must return its mean .*got"):
        wima.run(odd, engine=engine, workers=workers, **OPTIONS)


@pytest.mark.parametrize("engine", ["serial", "reference"])
@pytest.mark.parametrize("shape", [(14,), (1, 15), ()])
def test_a_pseudo_gradient_of_the_wrong_shape_names_round_and_hook(shape, engine):
    class Odd(wima.FedAvg):
        def server_update(self, w, delta, extra, server, fraction):
            return torch.ones(shape), server

    with pytest.raises(RunError, match=r"round 0, server_update: .*shape \(15,\), got \("):
        wima.run(task(), Odd(), engine=engine, **OPTIONS)


@pytest.mark.parametrize("cohort", [[0.9, 1, 2], [0, 1.0], ["1"], [None]])
def test_a_cohort_of_other_things_than_whole_numbers_is_refused(cohort):
    with pytest.raises(UsageError, match=r"cohort of round 0 must be .* got \["):
        wima.run(task(), cohorts=lambda seed, t: cohort, **OPTIONS)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_cohort_may_be_any_sequence_of_whole_numbers(kind):
    run = wima.run(task(), cohorts=lambda seed, t: kind([2, 0, 1]), **OPTIONS)
    assert run.records[0].cohort == [2, 0, 1]
