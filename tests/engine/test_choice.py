"""Engine `auto` takes the engine that is fastest here, and remembers what it measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima.algorithms.server_opt import SGD
from wima.data.batches import LocalSGD
from wima.engine import choice
from wima.engine.base import Setup
from wima.engine.choice import SHORT, Cost, choose

COHORT, STEPS = 4, 3
LONG = SHORT // COHORT  # rounds


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def task_of(model=lambda: nn.Linear(5, 3)) -> wima.Task:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 5)).astype("float32"), random.integers(3, size=60)
    data = wima.FederatedData.from_arrays(x, y, np.repeat(np.arange(6), 10))
    return wima.make_task(model, data, (x, y))


def setup_of(task=None, **sgd) -> Setup:
    local = LocalSGD(**{"batch_size": 4, **sgd})
    return Setup(task or task_of(), wima.FedAvg(), SGD(), local, "examples", 0)


class Faked:
    """Stands in for the clock: engines cost what it is told."""

    def __init__(self, monkeypatch, **costs: Cost) -> None:
        self.costs, self.measured = costs, []
        monkeypatch.setattr(choice, "measure", self)

    def __call__(self, make, name, probe, clients):
        self.measured.append(name)
        return self.costs[name]


def made(name, setup):
    raise AssertionError("the measuring is faked")


def ask(rounds=LONG, several=True, **setup) -> str:
    return choose(made, setup_of(**setup), COHORT, rounds, several)


@pytest.mark.parametrize("fastest", ["serial", "batched", "processes"])
def test_the_fastest_is_chosen(monkeypatch, fastest):
    costs = {name: Cost(0, 0.005) for name in ("batched", "processes")}
    Faked(monkeypatch, **{**costs, "serial": Cost(0, 0.006), fastest: Cost(0, 0.004)})
    monkeypatch.setattr(choice, "SHORT_ROUND", 0.0)
    assert ask() == fastest


def test_starting_workers_must_pay_within_the_run(monkeypatch):
    Faked(monkeypatch, serial=Cost(0, 0.5), processes=Cost(4, 0.3), batched=Cost(0, 1))
    monkeypatch.setattr(choice, "SHORT", 0)
    rounds = 4 / (0.5 - 0.3)  # where the two are level
    assert ask(rounds=int(rounds / 3)) == "serial"
    assert ask(rounds=int(rounds * 3)) == "processes"


def test_short_runs_are_not_worth_measuring_and_that_depends_on_no_clock(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    assert ask(rounds=SHORT // (COHORT * STEPS)) == "serial" and not faked.measured
    assert ask(rounds=SHORT // (COHORT * STEPS) + 1) == "batched" and faked.measured


def test_a_task_of_plain_functions_and_a_model_that_draws_are_not_batched(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    assert ask(task=task_of()._replace(workspace=None)) == "serial"
    dropout = task_of(lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)))
    assert ask(task=dropout) == "serial" and "batched" not in faked.measured


def test_slow_steps_are_not_batched_and_short_rounds_get_no_workers(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 1.0), processes=Cost(0, 0.5))
    assert ask() == "processes" and "batched" not in faked.measured
    faked = Faked(monkeypatch, serial=Cost(0, 0.001), batched=Cost(0, 0.002))
    assert ask(batch_size=5) == "serial" and "processes" not in faked.measured


def test_costs_are_remembered_until_model_work_machine_or_versions_change(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    again = [ask(), ask()]
    assert again == ["batched", "batched"] and faked.measured.count("batched") == 2
    ask(task=task_of(lambda: nn.Linear(5, 3, bias=False)))
    ask(batch_size=2)
    monkeypatch.setattr(torch, "__version__", "99")
    ask()
    monkeypatch.setattr(choice, "processor", lambda: "another")
    ask()
    assert faked.measured.count("batched") == 10


@pytest.mark.parametrize("content", ["", "[]", "{", '{"k": 3}', "null"])
def test_a_damaged_memory_is_measured_anew(monkeypatch, own_cache, content):
    own_cache.mkdir()
    Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    ask()
    (key,) = json.loads((own_cache / "engines.json").read_text())
    (own_cache / "engines.json").write_text(content.replace("k", key))
    assert ask() == "batched"


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch, own_cache):
    own_cache.write_text("a file where a folder should be")
    Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    assert ask() == "batched"


def test_the_real_measurement_is_recorded_and_decides(own_cache):
    task = task_of()
    options = {"rounds": LONG, "clients_per_round": 6, "lr": 0.1, "batch_size": 1, "eval_every": 0}
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with wima.simulate(task, **options) as simulation:
            engine = simulation.engine
            assert engine == simulation.facts()["engine"]
            assert simulation.t == 0 and torch.equal(simulation.w, task.init(0))
        assert torch.equal(torch.get_rng_state(), before)
    (costs,) = json.loads((own_cache / "engines.json").read_text()).values()
    assert set(costs) >= {"serial", "batched"} and all(c[1] > 0 for c in costs.values())
    assert engine == min(costs, key=lambda name: Cost(*costs[name]).total(LONG))


def test_a_model_that_fails_in_training_is_left_to_the_run_to_report():
    class Broken(nn.Linear):
        def forward(self, x):
            if self.training:
                raise ArithmeticError("broken")
            return super().forward(x)

    options = {"rounds": LONG, "clients_per_round": 4, "lr": 0.1, "batch_size": 4}
    simulation = wima.simulate(task_of(lambda: Broken(5, 3)), **options)
    with pytest.raises(wima.RunError, match=r"round 0, client .*broken"):
        next(simulation)


def test_who_names_a_number_of_workers_gets_them():
    options = {"rounds": 1, "clients_per_round": 2, "lr": 0.1}
    with wima.simulate(task_of(), workers=2, **options) as simulation:
        assert simulation.engine == "processes"
    with wima.simulate(task_of(), workers=1, **options) as simulation:
        assert simulation.engine == "serial"
