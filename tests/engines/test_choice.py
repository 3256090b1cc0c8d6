"""Engine `auto` takes the engine that is fastest here; the next run uses what was measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima.algorithms.server_opt import SGD
from wima.simulation.engines import auto as choice
from wima.simulation.engines.auto import SHORT, Cost, choose
from wima.simulation.options import LocalSGD
from wima.simulation.round import Engine, Setup

COHORT, STEPS = 4, 3
LONG = SHORT // COHORT  # rounds


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(choice, "MEASURED", {})


def task_of(model=lambda: nn.Linear(5, 3)) -> wima.Task:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 5)).astype("float32"), random.integers(3, size=60)
    data = wima.FederatedData.from_arrays(x, y, np.repeat(np.arange(6), 10))
    return wima.make_task(model, data, (x, y))


def setup_of(task=None, **sgd) -> Setup:
    local = LocalSGD(**{"batch_size": 4, **sgd})
    return Setup(task or task_of(), wima.FedAvg(), SGD(), local, "examples", 0)


class Faked:
    """Stands in for engines and the clock: a round of the run takes what `costs` say.

    Costs are those of COHORT clients with STEPS steps; rounds of fewer take less in proportion.
    """

    def __init__(self, monkeypatch, now: float = 0.0, **costs: Cost) -> None:
        self.costs, self.now, self.trials = costs, now, []
        monkeypatch.setattr(choice, "measure", self)
        monkeypatch.setattr(choice, "clock", lambda: self.now)

    def __call__(self, make, name, probe, clients, limit):
        startup, round_ = self.costs[name]
        steps = probe.sgd.steps
        cost = Cost(startup, round_ * clients * steps / (COHORT * STEPS))
        self.trials.append((name, clients, steps))
        self.now += cost.total(2)
        return cost

    @property
    def measured(self) -> list[str]:
        return [name for name, *_ in self.trials]


def made(name, setup):
    raise AssertionError("the measuring is faked")


def ask(rounds=LONG, several=True, **setup) -> str:
    return chosen(rounds, several, **setup)[0]


def chosen(rounds=LONG, several=True, **setup) -> tuple[str, str]:
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
    monkeypatch.setattr(choice, "LEAST", 60)
    rounds = 4 / (0.5 - 0.3)  # where the two are level
    assert ask(rounds=int(rounds / 3)) == "serial"
    assert ask(rounds=int(rounds * 3)) == "processes"


def test_short_runs_are_not_worth_measuring_and_that_depends_on_no_clock(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    name, why = chosen(rounds=SHORT // (COHORT * STEPS))
    assert name == "serial" and not faked.measured and "2,000 client steps" in why
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


def test_the_cheapest_trial_comes_first_and_each_engine_has_one(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.03), batched=Cost(0, 0.04), processes=Cost(1, 0.02))
    ask(rounds=100 * LONG)
    assert faked.trials[0] == ("serial", 1, 1)
    assert faked.measured[1:] == ["serial", "batched", "processes"]


def test_slow_steps_are_tried_few_at_a_time(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 12.0), processes=Cost(1, 6.0))
    assert ask() == "processes"
    assert {steps for _, _, steps in faked.trials} == {1}


@pytest.mark.parametrize("seconds", [0.01, 0.1, 1.0, 10.0])  # of a round
@pytest.mark.parametrize("length", [1, 10, 1000])
def test_trials_take_at_most_three_seconds_or_two_percent_of_the_run(monkeypatch, seconds, length):
    started, rounds = Cost(choice.START, seconds / 2), LONG * length
    costs = {"serial": Cost(0, seconds), "batched": Cost(0, 2 * seconds), "processes": started}
    faked = Faked(monkeypatch, **costs)
    monkeypatch.setattr(choice, "cores", lambda: 2)
    name = ask(rounds)
    assert faked.now <= max(3, 0.02 * costs[name].total(rounds))


def test_what_there_was_no_time_for_is_tried_by_a_longer_run(monkeypatch):
    costs = {"serial": Cost(0, 0.03), "batched": Cost(1, 0.04), "processes": Cost(2, 0.01)}
    monkeypatch.setattr(choice, "START", 2)
    faked = Faked(monkeypatch, **costs)
    name, why = chosen()
    assert name == "serial" and "no time to try processes" in why
    faked.trials.clear()
    assert ask(rounds=100 * LONG) == "processes"  # and nothing else is measured again
    assert set(faked.measured) == {"processes"}


def test_the_best_engine_so_far_is_taken_when_the_time_is_spent(monkeypatch):
    costs = {"serial": Cost(0, 0.03), "batched": Cost(2.9, 0.001), "processes": Cost(0, 1e-6)}
    faked = Faked(monkeypatch, **costs)
    assert ask(rounds=LONG) == "batched"
    assert "processes" not in faked.measured


def test_an_engine_that_refuses_the_model_is_not_asked_again(monkeypatch):
    class Refusing(Faked):
        def __call__(self, make, name, probe, clients, limit):
            if name == "batched":
                self.trials.append((name, clients, probe.sgd.steps))
                raise wima.UsageError("BatchNorm")
            return super().__call__(make, name, probe, clients, limit)

    faked = Refusing(monkeypatch, serial=Cost(0, 0.004))
    assert [ask(), ask()] == ["serial", "serial"]
    assert faked.measured.count("batched") == 1


def test_the_reason_has_the_estimates_and_the_time_that_trials_took(monkeypatch):
    costs = {"serial": Cost(0, 0.004), "batched": Cost(1, 0.001)}
    faked = Faked(monkeypatch, **costs)
    estimates = ", ".join(f"{n} {cost.total(LONG):.1f} s" for n, cost in costs.items())
    why = f"estimated time to train: {estimates}"
    assert chosen() == ("batched", f"{why} (trials took {faked.now:.1f} s)")
    assert chosen() == ("batched", f"{why} (measured before)")
    _, hours = chosen(rounds=3600 * 1000)
    assert "serial 4.0 h" in hours and "batched 1.0 h" in hours


@pytest.mark.parametrize(("limit", "rounds"), [(0.0, 2), (0.25, 5), (9.0, 6)])
def test_a_trial_has_two_rounds_or_more_until_its_time_is_over(monkeypatch, limit, rounds):
    """A round takes a twentieth of a second, and a trial 0.3 s at most."""
    monkeypatch.setattr(choice, "clock", lambda: sum(played) / 20)
    played = []

    class Played(Engine):
        def round(self, state, t, cohort, lr):
            played.append(1)

    cost = choice.measure(lambda name, setup: Played(setup), "serial", setup_of(), 2, limit)
    assert len(played) == rounds and cost == (0, pytest.approx(1 / 20))


def test_full_gradients_count_as_an_epoch_of_steps(monkeypatch):
    """A visit of MIMELite has STEPS steps and a gradient of 10 examples, which is 2.5 batches."""
    visit = 1.0
    step = visit / (STEPS + 10 / 4)

    def measured(make, name, probe, clients, limit):
        return Cost(0, clients * step * (probe.sgd.steps + 10 / 4))

    monkeypatch.setattr(choice, "measure", measured)
    setup = setup_of()._replace(algorithm=wima.MimeLite())
    _, why = choose(made, setup, COHORT, LONG, False)
    assert f"serial {COHORT * LONG * visit / 60:.1f} min" in why


def test_costs_are_remembered_until_model_or_work_change(monkeypatch):
    faked = Faked(monkeypatch, serial=Cost(0, 0.004), batched=Cost(0, 0.001))
    again = [ask(), ask()]
    assert again == ["batched", "batched"] and faked.measured.count("batched") == 1
    ask(task=task_of(lambda: nn.Linear(5, 3, bias=False)))
    ask(batch_size=2)
    ask(several=False)
    assert faked.measured.count("batched") == 4


def test_the_real_measurement_decides():
    task = task_of()
    options = {"rounds": LONG, "clients_per_round": 6, "lr": 0.1, "batch_size": 1, "eval_every": 0}
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with wima.simulate(task, **options) as simulation:
            engine = simulation.engine
            assert engine == simulation.facts()["engine"]
            assert simulation.t == 0 and torch.equal(simulation.w, task.init(0))
        assert torch.equal(torch.get_rng_state(), before)
    ((costs, _),) = choice.MEASURED.values()
    assert set(costs) >= {"serial", "batched"} and all(cost.round > 0 for cost in costs.values())
    assert engine == min(costs, key=lambda name: costs[name].total(LONG))


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
