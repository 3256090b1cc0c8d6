"""Facts about the round loop: which cohorts it trains, what it prepares early, what it takes."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest
import torch

import wima
from tests.helpers.toys import quadratics
from wima.simulation.options import RunOptions

ENGINES = ("reference", "serial", "processes")
SHORT = {"rounds": 6, "clients_per_round": 2, "lr": 0.1, "batch_size": "full"}


def least_squares() -> wima.Task:
    random = np.random.default_rng(0)
    x, clients = random.normal(size=(20, 3)).astype(np.float32), np.repeat(np.arange(5), 4)
    data = wima.FederatedData.from_arrays(x, (clients % 2).astype(np.int64), clients)
    torch.manual_seed(0)
    return wima.make_task(torch.nn.Linear(3, 2), data, (x, (clients % 2).astype(np.int64)))


@pytest.mark.parametrize("engine", ENGINES)
def test_cohorts_from_an_iterator_are_trained_as_they_are_recorded(engine):
    listed = [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 2]]
    drawn = iter(listed)
    with wima.simulate(
        least_squares(), cohorts=lambda seed, t: next(drawn), engine=engine, workers=2, **SHORT
    ) as simulation:
        assert [record.cohort for record in simulation] == listed
        once = simulation.w
    pure = wima.run(least_squares(), cohorts=lambda seed, t: listed[t], engine="reference", **SHORT)
    assert torch.equal(once, pure.vectors["plain"])


def test_serial_prepares_no_round_before_it_is_asked_for():
    calls = []

    class Counting(wima.Algorithm):
        def client_init(self, w):
            return (w,)

        def local(self, w, server, client):
            calls.append(len(calls))
            return wima.Local(w)

    task = quadratics(np.ones((3, 1)), np.zeros((3, 1)), (1, 1, 1))
    simulation = wima.simulate(task, Counting(), engine="serial", **SHORT)
    calls.clear()  # the hooks were tried, to find out what is sent
    for record in simulation:
        assert len(calls) == 2 * record.t


def test_the_signature_of_simulate_shows_every_option_once():
    shown = list(inspect.signature(wima.simulate).parameters)
    for kind in (RunOptions, wima.LocalSGD):
        for field in fields(kind):
            assert shown.count(field.name) == 1


def test_an_unknown_option_is_refused_with_the_nearest_known_one():
    with pytest.raises(wima.UsageError, match=r"Unknown option 'epoch'; did you mean 'epochs'\?"):
        wima.simulate(least_squares(), epoch=2)


def test_a_window_that_memory_cannot_hold_is_refused_with_what_helps():
    with pytest.raises(
        wima.UsageError, match=r"models need .* GB is free\. .*storage= of simulate"
    ):
        wima.simulate(least_squares(), averagers=[wima.WIMA(10**12)], **SHORT)
