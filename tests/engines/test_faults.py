"""Clients that drop out, straggle or return nonsense: the same ones in every engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import wima
from tests.helpers.pools import Lasting
from tests.helpers.unequal import BAD, EIGHT, OPTIONS, one_bad_example, task_of
from wima.core.errors import Diverged, RunError, UsageError
from wima.simulation.local import batches, shortened
from wima.simulation.options import Faults, LocalSGD

ENGINES = ["reference", "serial", "batched", "processes"]
ONE_STEP = {"rounds": 6, "clients_per_round": len(EIGHT), "steps": 1, "eval_every": 0}


def play(engine="serial", faults=None, algorithm=None, poison=None, **changes) -> wima.Result:
    return run_of(task_of(poison), engine, faults, algorithm, **changes)


def run_of(task, engine="serial", faults=None, algorithm=None, **changes) -> wima.Result:
    workers = 2 if engine == "processes" else None
    options = {**OPTIONS, "engine": engine, "workers": workers, **changes}
    return wima.run(task, algorithm, faults=faults, **options)


def assert_equal(result: wima.Result, expected: wima.Result, engine: str) -> None:
    """To the bit, apart from the engine that is equal up to rounding."""
    one, two = result.vectors["plain"], expected.vectors["plain"]
    if engine == "batched":
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    else:
        assert torch.equal(one, two)


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, Lasting]]:
    """What is wrong with a client -> worker processes for many runs."""
    seed, size = OPTIONS["seed"], OPTIONS["batch_size"]
    sgd, one_step = LocalSGD(batch_size=size), LocalSGD(batch_size=size, steps=1)
    lasting = {wrong_in(task): Lasting(task, sgd, seed) for task in (task_of(), task_of(1))}
    lasting["nan"] = Lasting(one_bad_example(), one_step, seed)
    yield lasting
    for pool in lasting.values():
        pool.processes.close()


def wrong_in(task: wima.Task) -> str:
    x = task.data.x
    return "inf" if np.isinf(x).any() else "nan" if np.isnan(x).any() else ""


@pytest.fixture
def lasting(request, monkeypatch) -> None:
    """Let runs on `processes` take the workers that are there."""
    if request.node.callspec.params["engine"] == "processes":
        pools = request.getfixturevalue("pools")
        monkeypatch.setattr(
            "wima.simulation.engines.auto.Processes",
            lambda setup, *_: pools[wrong_in(setup.task)].engine(setup),
        )


@pytest.mark.parametrize(
    "wrong", [{"dropout": 1.5}, {"stragglers": -0.1}, {"dropout": float("nan")}]
)
def test_probabilities_are_checked(wrong):
    with pytest.raises(UsageError, match=r"must be a number in \[0, 1\]"):
        Faults(**wrong)


def test_clients_drop_out_with_the_given_probability_and_independently_of_the_cohort():
    faults, clients = Faults(dropout=0.3), list(range(2000))
    left = faults.survivors(0, 5, clients)
    assert abs(len(left) / 2000 - 0.7) < 5 * (0.3 * 0.7 / 2000) ** 0.5
    assert faults.survivors(0, 5, clients[::2]) == [i for i in left if i % 2 == 0]
    assert faults.survivors(0, 6, clients) != left != faults.survivors(1, 5, clients)


def test_dropouts_are_recorded_and_leave_the_others_as_they_were():
    dropping = play(faults=Faults(dropout=0.4))
    survivors = [[i for i in r.cohort if i not in r.dropped] for r in dropping.records]
    assert any(r.dropped for r in dropping.records) and all(survivors)
    alone = play(cohorts=lambda seed, t: survivors[t])
    assert torch.equal(dropping.vectors["plain"], alone.vectors["plain"])


def test_a_round_without_survivors_keeps_the_model_and_the_average_sees_it_again():
    task = task_of()
    result = wima.run(task, faults=Faults(dropout=1.0), averagers=[wima.WIMA(2)], **OPTIONS)
    assert all(torch.equal(w, task.init(OPTIONS["seed"])) for w in result.vectors.values())
    assert all(list(r.dropped) == r.cohort for r in result.records)


def test_stragglers_do_the_first_part_of_their_steps():
    data, sgd, faults = task_of().data, LocalSGD(batch_size=1), Faults(stragglers=0.5)
    shares = [faults.share(0, t, 1) for t in range(400)]
    late = [s for s in shares if s < 1]
    assert abs(len(late) / 400 - 0.5) < 5 * 0.5 / 20
    assert abs(np.mean(late) - 0.5) < 5 * (1 / 12 / len(late)) ** 0.5
    whole, part = list(batches(data, 1, sgd, 0, 3)), list(batches(data, 1, sgd, 0, 3, 0.31))
    assert len(whole) == 20 and len(part) == shortened(20, 0.31) == 7
    assert all(torch.equal(a.x, b.x) for a, b in zip(part, whole, strict=False))
    assert shortened(20, 0.0) == 1 and shortened(20, 1.0) == 20


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("algorithm", [wima.FedAvg(), wima.Scaffold(), wima.Mime()])
def test_faults_are_the_same_in_every_engine(engine, algorithm, lasting):
    faults = Faults(dropout=0.3, stragglers=0.5)
    expected = play("reference", faults, algorithm)
    assert_equal(play(engine, faults, algorithm), expected, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_that_are_not_finite_are_excluded_and_counted(engine, lasting):
    cohorts = lambda seed, t: [0, 1, 2] if t else [0, 2]  # noqa: E731
    excluding = play(engine, Faults(exclude=True), poison=1, cohorts=cohorts, eval_every=0)
    assert [r.excluded for r in excluding.records] == [(), *[(1,)] * 5]
    without = play(poison=1, cohorts=lambda seed, t: [0, 2], eval_every=0)
    assert_equal(excluding, without, engine)


SENDING = [
    wima.Scaffold(option="I"),
    wima.Scaffold(option="II"),
    wima.MimeLite(),
    wima.Mime(),
    wima.FedDyn(alpha=0.1),
    wima.AdaBest(),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", SENDING, ids=repr)
def test_one_bad_example_costs_one_client_and_nobody_else(engine, algorithm, lasting):
    task = one_bad_example()
    excluding = run_of(task, engine, Faults(exclude=True), algorithm, **ONE_STEP)
    excluded = [r.excluded for r in excluding.records]
    assert set(excluded) <= {(), (BAD,)} and (BAD,) in excluded
    if algorithm.full_gradient != "none":  # which the bad example is always part of
        assert set(excluded) == {(BAD,)}
    others = lambda seed, t: [i for i in range(len(EIGHT)) if i not in excluded[t]]  # noqa: E731
    without = run_of(task, "serial", None, algorithm, cohorts=others, **ONE_STEP)
    assert_equal(excluding, without, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_of_which_all_are_excluded_keeps_the_model(engine, lasting):
    faults, cohorts = Faults(exclude=True), lambda seed, t: [1]
    result = play(engine, faults, poison=1, cohorts=cohorts, eval_every=0, rounds=2)
    assert torch.equal(result.vectors["plain"], task_of().init(OPTIONS["seed"]))
    assert all(r.excluded == (1,) for r in result.records)


@pytest.mark.parametrize("algorithm", [wima.FedAvg(), wima.Mime()])
@pytest.mark.parametrize("engine", ENGINES)
def test_three_rounds_in_a_row_without_a_usable_update_end_the_run(engine, algorithm, lasting):
    def bad(*rounds: int):
        return lambda seed, t: [1] if t in rounds else [0, 1]

    play(engine, Faults(exclude=True), algorithm, 1, cohorts=bad(0, 1, 3, 4), eval_every=0)
    with pytest.raises(RunError, match="No client sent a usable update in 3 consecutive rounds"):
        play(engine, Faults(exclude=True), algorithm, 1, cohorts=bad(3, 4, 5), eval_every=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_exclusion_such_a_run_ends_as_diverged(engine):
    with pytest.raises(Diverged, match=r"round 1: the norm of the model is nan, more than"):
        play(engine, poison=1, cohorts=lambda seed, t: [1], eval_every=0)


def test_a_norm_beyond_the_factor_ends_the_run():
    with pytest.raises(Diverged, match=r"round \d: the norm of the model is .*, more than"):
        play(lr=50.0, diverged=2.0)
    with pytest.raises(UsageError, match="diverged"):
        play(diverged=-1.0)
