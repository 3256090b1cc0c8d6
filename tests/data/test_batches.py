"""What a run is fed: mini-batches, cohorts, settings, tasks of plain functions."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wima
from wima.data.federated import FederatedData
from wima.simulation.local import batches, everything
from wima.simulation.options import LocalSGD, uniform_cohorts
from wima.simulation.task import Task

CASES = [(n, size, epochs) for n in (1, 3, 7, 20) for size in (1, 3, 7, 10) for epochs in (1, 2, 5)]


def plan(n: int, seed: int = 0, **settings):
    return LocalSGD(**settings).plan(n, np.random.default_rng(seed))


def twins(n: int = 9, clients: int = 3) -> FederatedData:
    """Clients that hold the same numbered examples, so that only their address tells them apart."""
    x = np.tile(np.arange(n, dtype=np.float32), clients)
    return FederatedData(x, np.arange(n * clients), np.arange(clients + 1) * n)


def seen(data, client=0, seed=0, t=0, **settings):
    return [batch.x.tolist() for batch in batches(data, client, LocalSGD(**settings), seed, t)]


@pytest.mark.parametrize(("n", "size", "epochs"), CASES)
def test_filled_visit_has_epochs_times_n_over_b_steps_of_exactly_b_examples(n, size, epochs):
    visit = plan(n, batch_size=size, epochs=epochs)
    assert len(visit) == ceil(epochs * n / size)
    assert {len(batch) for batch in visit} == {size}


@pytest.mark.parametrize(("n", "size", "epochs"), CASES)
@pytest.mark.parametrize("last_batch", ["fill", "short"])
def test_every_pass_sees_every_example_once_before_any_again(n, size, epochs, last_batch):
    order = np.concatenate(plan(n, batch_size=size, epochs=epochs, last_batch=last_batch))
    passes = [order[start : start + n].tolist() for start in range(0, len(order), n)]
    assert sum(sorted(one) == list(range(n)) for one in passes) >= epochs
    assert all(len(set(one)) == len(one) and max(one) < n for one in passes)


def test_passes_are_shuffled_anew():
    first, second = plan(50, batch_size=50, epochs=2)
    in_order = list(range(50))
    assert in_order != first.tolist() != second.tolist() != in_order


def test_client_smaller_than_a_batch_repeats_its_examples():
    n, size = 3, 10
    (batch,) = plan(n, batch_size=size)
    counts = np.bincount(batch, minlength=n)
    assert counts.sum() == size and counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("n", "size", "epochs"), CASES)
def test_short_last_batches_are_those_of_a_torch_loader(n, size, epochs):
    loader = DataLoader(range(n), batch_size=size, shuffle=True)
    expected = [len(batch) for _ in range(epochs) for batch in loader]
    visit = plan(n, batch_size=size, epochs=epochs, last_batch="short")
    assert [len(batch) for batch in visit] == expected


@pytest.mark.parametrize("last_batch", ["fill", "short"])
def test_full_batches_hold_all_examples(last_batch):
    visit = plan(7, batch_size="full", epochs=3, last_batch=last_batch)
    assert [sorted(batch) for batch in visit] == [list(range(7))] * 3


@pytest.mark.parametrize("last_batch", ["fill", "short"])
@pytest.mark.parametrize("steps", [1, 4, 11])
@pytest.mark.parametrize("batch_size", [4, "full"])
def test_steps_override_epochs(steps, last_batch, batch_size):
    visit = plan(6, batch_size=batch_size, epochs=2, steps=steps, last_batch=last_batch)
    assert len(visit) == steps


def test_more_steps_continue_the_same_passes():
    few, many = (plan(6, batch_size=4, steps=steps) for steps in (2, 9))
    assert [a.tolist() for a in few] == [b.tolist() for b in many[:2]]


def test_same_address_gives_the_same_batches_and_any_other_others():
    data = twins()
    here = seen(data, client=1, seed=2, t=3, batch_size=4, epochs=3)
    assert seen(data, client=1, seed=2, t=3, batch_size=4, epochs=3) == here
    others = [{"client": 2, "seed": 2, "t": 3}, {"client": 1, "seed": 3, "t": 3}]
    for other in [*others, {"client": 1, "seed": 2, "t": 4}, {"client": 1, "seed": 3, "t": 2}]:
        assert seen(data, **other, batch_size=4, epochs=3) != here


def test_batches_are_rows_of_their_own_client_with_labels_and_an_address_per_step():
    data = twins()
    visit = list(batches(data, 1, LocalSGD(batch_size=4), seed=2, t=3))
    x, y = data.client(1)
    for batch in visit:
        assert [x[list(y).index(label)] for label in batch.y.tolist()] == batch.x.tolist()
    assert len({batch.address for batch in visit}) == len(visit) == ceil(len(x) / 4)


def test_batches_are_copies_of_the_data():
    data = twins()
    before = data.x.copy()
    streams = (batches(data, 0, LocalSGD(batch_size="full"), 0, 0), everything(data, 0, 0, 0))
    for batch in (batch for stream in streams for batch in stream):
        batch.x.fill_(-1)
    assert np.array_equal(data.x, before)


@pytest.mark.parametrize("size", [1, 4, 9, 100])
def test_everything_is_all_examples_once_in_order(size):
    data = twins()
    pieces = list(everything(data, 1, seed=0, t=0, size=size))
    x, y = (torch.cat([getattr(piece, field) for piece in pieces]) for field in ("x", "y"))
    assert np.array_equal(x, data.client(1)[0]) and np.array_equal(y, data.client(1)[1])
    assert max(len(piece.x) for piece in pieces) <= size
    steps = {batch.address for batch in batches(data, 1, LocalSGD(), 0, 0)}
    assert not steps & {piece.address for piece in pieces}


BAD = [
    *(("batch_size", value) for value in (0, -1, 2.5, True, "all")),
    *(("epochs", value) for value in (0, -1, 1.5, "2")),
    *(("steps", value) for value in (0, -3, 1.5)),
    *(("momentum", value) for value in (1, 1.5, -0.1, "0.9", float("nan"))),
    *(("weight_decay", value) for value in (-1e-4, float("inf"), "0")),
    *(("clip", value) for value in (0, -1, float("nan"), "1")),
    ("last_batch", "x"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_settings_are_refused_with_their_name_and_value(field, value):
    with pytest.raises(wima.UsageError, match=f"{field} must be .*got {value!r}"):
        LocalSGD(**{field: value})


def test_cohorts_depend_on_seed_and_round_alone():
    one, other = uniform_cohorts(50, 10), uniform_cohorts(50, 10)
    asked = [(seed, t) for seed in range(3) for t in range(5)]
    drawn = {address: one(*address) for address in asked}
    assert {address: other(*address) for address in reversed(asked)} == drawn
    assert len({tuple(cohort) for cohort in drawn.values()}) == len(asked)


@pytest.mark.parametrize("size", [1, 7, 20])
def test_cohorts_are_clients_without_repeats_and_reach_everyone(size):
    cohorts = [uniform_cohorts(20, size)(0, t) for t in range(300)]
    assert all(len(set(cohort)) == len(cohort) == size for cohort in cohorts)
    assert {client for cohort in cohorts for client in cohort} == set(range(20))


def test_clients_are_drawn_equally_often():
    clients, size, rounds = 20, 5, 4000
    draws = [client for t in range(rounds) for client in uniform_cohorts(clients, size)(1, t)]
    p = size / clients
    counts = np.bincount(draws, minlength=clients)
    assert np.abs(counts - rounds * p).max() < 5 * np.sqrt(rounds * p * (1 - p))


def quadratics(gradient) -> Task:
    """Client i has |w - b_i|^2 / 2 in float64; b_i is its only example."""
    b = np.random.default_rng(0).normal(size=(6, 3))
    data = FederatedData(b, np.zeros(6), np.arange(7))
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    return Task(data, lambda seed: start.clone(), gradient, lambda w: {"norm": float(w.norm())})


def to_centre(w, batch):
    return w - batch.x.mean(0)


SHORT = {"rounds": 3, "clients_per_round": 6, "lr": 0.1, "batch_size": 1, "steps": 4}


def test_quadratics_of_plain_functions_run_on_every_engine():
    task = quadratics(lambda w, batch: w - batch.x.mean(0))
    b, expected = torch.from_numpy(task.data.x), task.init(0)
    for _ in range(SHORT["rounds"]):  # a step shrinks the distance to b_i by 1 - lr
        expected = (b + (1 - SHORT["lr"]) ** SHORT["steps"] * (expected - b)).mean(0)
    engines = ("reference", "serial", "processes")
    vectors = [wima.run(task, engine=engine, **SHORT).vectors["plain"] for engine in engines]
    assert all(torch.equal(w, vectors[0]) for w in vectors)
    torch.testing.assert_close(vectors[0], expected, rtol=1e-14, atol=1e-14)


CONSTANT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("gradient", [lambda w, batch: w, lambda w, batch: CONSTANT])
def test_a_gradient_may_be_w_itself_or_a_constant(gradient):
    task, before = quadratics(gradient), CONSTANT.clone()
    one, two = (
        wima.run(task, engine=engine, clip=0.5, **SHORT).vectors["plain"]
        for engine in ("reference", "serial")
    )
    assert torch.equal(CONSTANT, before)
    assert torch.equal(one, two)


@pytest.mark.parametrize("engine", ["reference", "serial"])
def test_visits_bring_the_gradient_of_all_examples_at_w_and_the_mean_along_the_path(engine):
    class Keep(wima.Algorithm):
        full_gradient, path_gradient = "own", True

        def client_finish(self, visit, server, client):
            mean_step = visit.delta / (visit.steps * visit.lr)
            return None, (visit.gradient, visit.path_gradient, mean_step)

    x = np.random.default_rng(0).normal(size=(2000, 3))  # 1300 examples come in unequal pieces
    data = FederatedData(x, np.zeros(2000), np.array([0, 1300, 2000]))
    task, settings = quadratics(to_centre)._replace(data=data), {**SHORT, "clients_per_round": 2}
    simulation = wima.simulate(task, Keep(), engine=engine, weight_decay=0.1, **settings)
    w = simulation.w.clone()
    next(simulation)
    kept = simulation.state.memory.visited()
    for i in range(2):
        expected = w - torch.from_numpy(data.client(i)[0]).mean(0) + 0.1 * w
        gradient, path_gradient, mean_step = kept[i]
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(path_gradient, mean_step, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("every", "last"), [(1, 0), (3, 0), (4, 2), (20, 1), (0, 5), (5, 100)])
def test_records_count_rounds_and_are_evaluated_when_asked(every, last):
    rounds, task = 11, quadratics(to_centre)
    settings = {**SHORT, "rounds": rounds, "eval_every": every, "eval_last": last}
    simulation = wima.simulate(task, averagers=[wima.WIMA(2)], **settings)
    records = []
    for record in simulation:
        records.append(record)
        expected = {name: task.evaluate(w) for name, w in simulation.vectors().items()}
        assert record.metrics in ({}, expected)
    assert [record.t for record in records] == list(range(1, rounds + 1))
    periodic = [t for t in range(1, rounds + 1) if every and t % every == 0]
    final = range(rounds - max(last, 1) + 1, rounds + 1) if every else []
    assert [r.t for r in records if r.metrics] == sorted({*periodic, *final} - {*range(-100, 1)})
    assert {r.lr for r in records} == {SHORT["lr"]} and records[0].cohort == list(range(6))


WRONG = {
    "clients_per_round must be at most the number of clients, 6, got 7": {"clients_per_round": 7},
    "clients_per_round must be a positive integer, got 0": {"clients_per_round": 0},
    "rounds must be a positive integer, got 0": {"rounds": 0},
    "lr must be a positive number, got -0.1": {"lr": -0.1},
    "lr must be a positive number, got nan": {"lr": float("nan")},
    "eval_every must be a non-negative integer, got -1": {"eval_every": -1},
    "seed must be in 0 ... 2\\*\\*32 - 1, got -1": {"seed": -1},
    "weighting must be one of examples, uniform, got 'equal'": {"weighting": "equal"},
    "workers must be a positive integer, got 0": {"workers": 0},
    "Unknown option 'batchsize'; did you mean 'batch_size'": {"batchsize": 3},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_settings_of_a_run_are_refused_with_what_was_expected(message):
    with pytest.raises(wima.UsageError, match=message):
        wima.simulate(quadratics(to_centre), **{**SHORT, **WRONG[message]})
