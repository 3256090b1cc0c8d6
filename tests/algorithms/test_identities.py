"""Methods that are each other's special cases, and facts of all of them.

The problem is that of `helpers.least_squares`.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

import wima
from tests.helpers.least_squares import (
    SETTINGS,
    SIZES,
    M,
    assert_same,
    both_weightings,
    differ,
    least_squares,
    models,
)
from wima import SGD, FederatedData, Local
from wima.algorithms import BY_NAME
from wima.algorithms.feddyn import Dual
from wima.algorithms.mime import Statistics

VARIANTS = {
    **{name: algorithm() for name, algorithm in BY_NAME.items()},
    "scaffold-I": wima.Scaffold(option="I"),
    "feddyn-mean": wima.FedDyn(alpha=0.1, serve_mean=True),
    "adabest-mean": wima.AdaBest(mu=0.1, beta=0.5, serve_mean=True),
    "mime-sgd": wima.Mime(momentum=0.0),
}
AVERAGERS = (wima.WIMA(3), wima.SWA(start=2, cycle=1), wima.EMA(), wima.LAWA(2, 2))
every_algorithm = pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)


# Methods that become one another.


def test_no_two_methods_are_the_same_on_this_problem():
    names = ("fedavg", "fedprox", "scaffold", "scaffold-I", "feddyn", "adabest", "fedcm", "fedacg")
    runs = {name: models(VARIANTS[name]) for name in (*names, "mime", "mimelite", "mime-sgd")}
    assert all(differ(runs[one], runs[other]) for one, other in combinations(runs, 2))


@pytest.mark.parametrize(
    ("algorithm", "server_opt"),
    [
        (wima.FedProx(mu=0.0), SGD()),
        (wima.FedAvg(), wima.Momentum(momentum=0.0)),
        (wima.FedAvg(), SGD(momentum=1e-15)),  # not the branch without momentum
        (wima.FedCM(alpha=1.0), SGD()),
        (wima.FedACG(lam=0.0, beta=0.0), SGD()),
        (wima.AdaBest(mu=0.0, beta=0.0), SGD()),
        (wima.MimeLite(momentum=0.0), SGD()),
        (wima.MimeLite(momentum=0.0), SGD(lr=0.3)),
    ],
    ids=str,
)
@both_weightings
def test_without_its_own_term_a_method_is_fedavg(algorithm, server_opt, weighting):
    expected = models(server_opt=SGD(lr=server_opt.lr), weighting=weighting)
    assert_same(models(algorithm, server_opt=server_opt, weighting=weighting), expected)


def test_fedacg_without_momentum_is_fedprox():
    assert_same(models(wima.FedACG(lam=0.0, beta=0.7)), models(wima.FedProx(mu=0.7)))


def test_feddyn_without_its_memories_is_fedprox():
    class Forgetful(wima.FedDyn):
        def client_finish(self, visit, server, client):
            return visit.delta, Dual(torch.zeros_like(visit.end))

        def server_update(self, w, delta, extra, server, fraction):
            return delta, server

    assert_same(models(Forgetful(alpha=0.7)), models(wima.FedProx(mu=0.7)))


def test_adabest_without_client_memory_is_fedavg_with_nesterov_momentum():
    nesterov = SGD(momentum=0.8, nesterov=True)
    assert_same(models(wima.AdaBest(mu=0.0, beta=0.8)), models(server_opt=nesterov))


@pytest.mark.parametrize("mu", [0.5, 3.0, 5.0], ids=["settles", "swings", "explodes"])
def test_a_visit_to_adabests_client_scales_its_error_by_one_minus_mu_lr_steps(mu):
    task = least_squares([4], linear=True)  # its gradient is constant, it is visited every round
    how = {"lr": 0.1, "batch_size": 4, "epochs": 5, "weight_decay": 0.0, "clients_per_round": 1}
    moves = models(wima.AdaBest(mu=mu, beta=0.0), task, **how).diff(dim=0)
    assert_same(moves[1:], (1 - mu * 0.1 * 5) * moves[:-1])


def test_fedacg_is_fedavgm_on_linear_losses():
    settings = {"task": least_squares(linear=True), "weight_decay": 0.0}
    acg = models(wima.FedACG(lam=0.8, beta=0.0), **settings)
    assert_same(acg, models(server_opt=SGD(momentum=0.8), **settings))
    assert differ(acg, models(**settings))


def test_mime_in_the_papers_scaling_needs_a_rate_divided_by_one_minus_momentum():
    class Paper(wima.Mime):
        def local(self, w, server, client):
            shift = (1 - self.momentum) * server.c + self.momentum * server.m
            return Local(w, scale=1 - self.momentum, shift=shift, anchored=True)

        def server_update(self, w, delta, extra, server, fraction):
            m = (1 - self.momentum) * server.c + self.momentum * server.m
            return delta, Statistics(m, server.c)

    paper = models(Paper(momentum=0.9), lr=0.05)
    assert_same(paper, models(wima.Mime(momentum=0.9), lr=0.05 * (1 - 0.9)))


# First rounds, when all memories are zero.


@pytest.mark.parametrize(
    ("algorithm", "twin", "server_opt", "lr"),
    [
        (wima.Scaffold(option="I"), wima.FedAvg(), SGD(), 0.05),
        (wima.Scaffold(option="II"), wima.FedAvg(), SGD(), 0.05),
        (wima.MimeLite(momentum=0.9), wima.FedAvg(), SGD(lr=0.3), 0.05),
        (wima.Mime(momentum=0.9), wima.Mime(momentum=0.0), SGD(lr=0.3), 0.05),
        (wima.FedCM(alpha=0.3), wima.FedAvg(), SGD(), 0.3 * 0.05),
        (wima.FedACG(lam=0.9, beta=0.3), wima.FedProx(mu=0.3), SGD(), 0.05),
    ],
    ids=str,
)
def test_the_first_round_and_no_other_is_that_of_its_twin(algorithm, twin, server_opt, lr):
    run = models(algorithm, server_opt=server_opt)
    expected = models(twin, server_opt=server_opt, lr=lr)
    assert_same(run[0], expected[0])
    assert differ(run[1], expected[1])


def test_fedavgm_starts_as_fedavg_with_its_server_rate():
    run, expected = models(server_opt=SGD(lr=0.3, momentum=0.9)), models(server_opt=SGD(lr=0.3))
    assert_same(run[0], expected[0])
    assert differ(run[1], expected[1])


def test_feddyn_does_not_become_fedavg_as_alpha_vanishes():
    w0, fedavg, feddyn = least_squares().init(0), models(), models(wima.FedDyn(alpha=1e-8))
    uniform = models(weighting="uniform")
    torch.testing.assert_close(feddyn[0], fedavg[0] + 3 / M * (uniform[0] - w0), rtol=0, atol=1e-7)
    assert differ(feddyn[0], fedavg[0])


# Steps and weights.


def test_the_first_local_step_of_fedprox_is_that_of_fedavg():
    assert_same(models(wima.FedProx(mu=0.7), steps=1), models(steps=1))
    assert differ(models(wima.FedProx(mu=0.7), steps=2), models(steps=2))


@every_algorithm
def test_clients_of_equal_size_have_equal_weights(algorithm):
    equal = least_squares((5,) * M)
    assert_same(models(algorithm, equal, weighting="uniform"), models(algorithm, equal))
    assert differ(models(algorithm, weighting="uniform"), models(algorithm))


def test_three_ways_to_write_feddyn_are_one():
    class AcarsCode(wima.Algorithm):  # u_i = -lam_i / alpha; the server knows their mean over all
        def client_init(self, w):
            return (torch.zeros_like(w),)

        init = client_init

        def local(self, w, server, client):
            return Local(w, prox=0.1, shift=0.1 * client[0])

        def client_finish(self, visit, server, client):
            return -visit.delta, (client[0] - visit.delta,)

        def server_update(self, w, delta, extra, server, fraction):
            u = server[0] + fraction * extra
            return delta - u, (u,)

    class AdaBestsNotation(wima.FedDyn):  # h in units of the model
        def server_update(self, w, delta, extra, server, fraction):
            h = server.h + fraction * delta
            return delta + h, server._replace(h=h)

    expected = models(wima.FedDyn(alpha=0.1), weighting="uniform")
    assert_same(models(AcarsCode(), weighting="uniform"), expected)
    assert_same(models(AdaBestsNotation(alpha=0.1), weighting="uniform"), expected)


# Facts of every method.


@every_algorithm
def test_watching_a_run_leaves_it_bit_identical(algorithm):
    watched = models(algorithm, averagers=AVERAGERS, eval_every=1)
    assert torch.equal(watched, models(algorithm))


def test_a_model_that_was_served_does_not_change_in_later_rounds():
    simulation = wima.simulate(least_squares(), averagers=AVERAGERS, **SETTINGS)
    served = [simulation.vectors() for _ in simulation]
    simulation = wima.simulate(least_squares(), averagers=AVERAGERS, **SETTINGS)
    for vectors, _ in zip(served, simulation, strict=True):
        for name, w in simulation.vectors().items():
            assert torch.equal(vectors[name], w), name


@pytest.mark.parametrize(
    ("algorithm", "server_opt"),
    [
        *((algorithm, SGD()) for algorithm in VARIANTS.values()),
        *((wima.FedAvg(), opt) for opt in (SGD(lr=0.1), wima.Momentum(), wima.Adam(), wima.Yogi())),
    ],
)
def test_wima_is_a_base_with_steps_that_fade(algorithm, server_opt):
    W, task = 3, least_squares()
    settings = {**SETTINGS, "server_opt": server_opt, "averagers": [wima.WIMA(1), wima.WIMA(W)]}
    simulation, served = wima.simulate(task, algorithm, **settings), [task.init(0)]
    for record in simulation:
        vectors, start = simulation.vectors(), record.t - W
        served.append(vectors["plain"].clone())
        assert_same(vectors["wima1"], served[-1])
        if start >= 0:
            steps = [served[start + j] - served[start + j + 1] for j in range(W)]
            faded = served[start] - sum((W - j) / W * u for j, u in enumerate(steps))
            assert_same(vectors[f"wima{W}"], faded)


@every_algorithm
def test_the_order_of_a_cohort_matters_only_to_rounding(algorithm):
    cohorts = [[0, 1, 2], [3, 5], [0, 4, 2], [1, 2, 3], [5, 4, 0], [3, 1]]
    forward = models(algorithm, cohorts=lambda seed, t: cohorts[t])
    assert_same(models(algorithm, cohorts=lambda seed, t: cohorts[t][::-1]), forward)


def test_a_seed_gives_every_method_the_same_cohorts_and_another_seed_gives_others():
    def drawn(algorithm, seed):
        result = wima.run(least_squares(), algorithm, **SETTINGS, seed=seed)
        return [record.cohort for record in result.records]

    cohorts = drawn(None, 0)
    assert all(len(set(cohort)) == 3 for cohort in cohorts)
    assert all(drawn(algorithm, 0) == cohorts for algorithm in VARIANTS.values())
    assert drawn(None, 1) != cohorts


def test_a_client_split_in_two_equal_halves_counts_as_before():
    data = least_squares().data
    owner, twin = np.repeat(np.arange(M), SIZES), slice(*data.offsets[2:4])
    x, y = np.concatenate([data.x, data.x[twin]]), np.concatenate([data.y, data.y[twin]])

    def play(owner_of_the_twin, cohort, weighting):
        clients = np.concatenate([owner, np.full(SIZES[2], owner_of_the_twin)])
        task = least_squares()._replace(data=FederatedData.from_arrays(x, y, clients))
        full = {"batch_size": "full", "steps": 4, "weighting": weighting}
        return models(None, task, cohorts=lambda *_: cohort, clients_per_round=len(cohort), **full)

    whole, split = (2, [0, 2, 4]), (M, [0, 2, M, 4])
    assert_same(play(*whole, "examples"), play(*split, "examples"))
    assert differ(play(*whole, "uniform"), play(*split, "uniform"))


@every_algorithm
def test_every_method_keeps_the_promises_that_engines_rely_on(algorithm):
    wima.check_algorithm(algorithm)
