"""What holds between methods, inside their rounds, and where they lead.

The problem is that of `helpers.least_squares`. SCAFFOLD and FedDyn end at the optimum of the
*unweighted* mean of the clients' losses, whatever the weights of the model average: their server
memories count every client once, as 1/M.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import wima
from tests.helpers.least_squares import (
    DECAY,
    SETTINGS,
    SIZES,
    M,
    assert_same,
    both_weightings,
    differ,
    least_squares,
    models,
)
from tests.helpers.toys import quadratics, trajectory
from wima import SGD, FederatedData, Local, Task, Visit
from wima.algorithms import BY_NAME
from wima.algorithms.feddyn import Dual, Dyn
from wima.algorithms.mime import Statistics
from wima.algorithms.scaffold import Control

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


# Inside the rounds: what clients return.


class Round(NamedTuple):
    w: torch.Tensor  # before the round
    after: torch.Tensor
    server: Any  # before the round
    memory: dict[int, Any]  # before the round
    visits: dict[int, Visit]
    simulation: wima.Simulation

    @property
    def remembered(self) -> dict[int, Any]:
        return self.simulation.state.memory.visited()

    def mean_end(self, weighting: str = "examples") -> torch.Tensor:
        """The mean of the models that the clients returned."""
        p = {i: SIZES[i] if weighting == "examples" else 1 for i in self.visits}
        return sum(p[i] * visit.end for i, visit in self.visits.items()) / sum(p.values())


def rounds_of(
    algorithm: wima.Algorithm,
    task: Task | None = None,
    prepare: Callable[[wima.Simulation], object] = lambda simulation: None,
    **changes: Any,
) -> Iterator[Round]:
    """Play a run and look at each round, with the visits that its clients made."""
    visits: list[Visit] = []

    class Spy(type(algorithm)):
        def client_finish(self, visit, server, client):
            visits.append(visit)
            return super().client_finish(visit, server, client)

    settings = {**SETTINGS, **changes}
    simulation = wima.simulate(task or least_squares(), Spy(**asdict(algorithm)), **settings)
    prepare(simulation)
    for _ in range(simulation.rounds):
        w, server, memory = simulation.w, simulation.state.server, simulation.state.memory.visited()
        visits.clear()
        seen = dict(zip(next(simulation).cohort, visits, strict=True))
        yield Round(w, simulation.w, server, memory, seen, simulation)


def full_gradient(task: Task, w: torch.Tensor, i: int) -> torch.Tensor:
    x, y = map(torch.from_numpy, task.data.client(i))
    return x.T @ (x @ w - y) / len(x) + DECAY * w


def test_every_local_step_of_mime_is_c_on_linear_losses():
    for r in rounds_of(wima.Mime(momentum=0.0), least_squares(linear=True), weight_decay=0.0):
        for visit in r.visits.values():
            assert_same(visit.delta, visit.steps * visit.lr * r.simulation.state.server.c)


def test_the_direction_of_fedcm_is_a_moving_average_of_gradients_on_linear_losses():
    task, full = least_squares(linear=True), {"batch_size": "full", "weight_decay": 0.0}
    for r in rounds_of(wima.FedCM(alpha=0.3), task, epochs=2, **full):
        sums = sum(task.data.client(i)[0].sum(axis=0) for i in r.visits)
        gradient = torch.from_numpy(sums / sum(SIZES[i] for i in r.visits))
        D = r.simulation.state.server.D
        assert_same(D, 0.3 * gradient + 0.7 * r.server.D)
        assert_same(D, (r.w - r.after) / (2 * 0.05))  # K is the same for all


@both_weightings
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("algorithm", [wima.FedAvg(), wima.FedACG(lam=0.8, beta=0.3)], ids=str)
def test_the_new_model_is_the_mean_of_the_returned_ones(algorithm, size, weighting):
    for r in rounds_of(algorithm, clients_per_round=size, weighting=weighting):
        assert_same(r.after, r.mean_end(weighting))


@pytest.mark.parametrize("kind", [wima.FedDyn, wima.AdaBest])
def test_serving_the_mean_serves_it_and_leaves_training_bit_identical(kind):
    assert torch.equal(models(kind(serve_mean=True)), models(kind()))
    for r in rounds_of(kind(serve_mean=True)):
        assert_same(r.simulation.vectors()["plain"], r.mean_end())
        assert differ(r.mean_end(), r.after)


@pytest.mark.parametrize("alpha", [1e-7, 0.1])
def test_feddyn_adds_up_all_its_steps_whatever_alpha(alpha):
    drift = 0.0
    for r in rounds_of(wima.FedDyn(alpha=alpha), weighting="uniform"):
        mean = r.mean_end("uniform")
        drift = drift + 3 / M * (mean - r.w)
        torch.testing.assert_close(r.after, mean + drift, rtol=1e-9, atol=1e-9)


# What clients remember.


@pytest.mark.parametrize("client", [{}, {"momentum": 0.6, "clip": 0.5}], ids=["plain", "clipped"])
def test_scaffold_keeps_the_mean_of_raw_gradients_even_where_that_is_not_the_quotient(client):
    task, raw = least_squares(), defaultdict(list)

    def gradient(w, batch):
        _, t, i, _ = batch.address
        raw[t, i].append(task.gradient(w, batch) + DECAY * w)
        return task.gradient(w, batch)

    for t, r in enumerate(rounds_of(wima.Scaffold(), task._replace(gradient=gradient), **client)):
        for i, visit in r.visits.items():
            c_i, before = r.remembered[i].c, r.memory[i].c if i in r.memory else 0.0
            quotient = before - r.server.c + (r.w - visit.end) / (visit.steps * visit.lr)
            assert_same(c_i, torch.stack(raw[t, i]).mean(dim=0))
            assert torch.allclose(c_i, quotient, rtol=1e-12, atol=1e-12) == (not client)


def test_adabest_at_its_unbiased_scale_starts_with_the_mean_gradients_of_scaffold():
    K, lr = 4, 0.05
    r = next(rounds_of(wima.AdaBest(mu=1 / (K * lr)), steps=K, lr=lr))
    expected = next(rounds_of(wima.Scaffold(), steps=K, lr=lr)).remembered
    assert_same([r.remembered[i].h for i in r.visits], [expected[i].c for i in r.visits])


@pytest.mark.parametrize(
    "algorithm", [wima.Scaffold(), wima.Scaffold(option="I"), wima.FedDyn(alpha=0.1)], ids=str
)
@both_weightings
def test_the_servers_memory_is_the_mean_of_those_of_all_clients(algorithm, weighting):
    # The first fields: c and c_i of SCAFFOLD, h and lam_i of FedDyn.
    for r in rounds_of(algorithm, weighting=weighting):
        clients = [memory[0] for memory in r.remembered.values()]
        assert_same(r.simulation.state.server[0], sum(clients) / M)  # 0 if never visited


# Where it leads.


def exact(task: Task, w: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """All full gradients at w, and their unweighted mean."""
    gradients = [full_gradient(task, w, i) for i in range(M)]
    return gradients, sum(gradients) / M


def remember(server: Any, clients: Sequence[Any]) -> Callable[[wima.Simulation], None]:
    """Set the memories of a run before it starts."""

    def prepare(simulation: wima.Simulation) -> None:
        simulation.state = simulation.state._replace(server=server)
        for i, client in enumerate(clients):
            simulation.state.memory.write(i, client)
        simulation.state.memory.commit()

    return prepare


def test_exact_controls_send_every_client_of_scaffold_along_c():
    task = least_squares()
    gradients, c = exact(task, task.init(0))
    prepare = remember(Control(c), [Control(g) for g in gradients])
    step = {"batch_size": "full", "steps": 1, "rounds": 1, "clients_per_round": M}
    (r,) = rounds_of(wima.Scaffold(), task, prepare, **step)
    for visit in r.visits.values():
        assert_same(visit.delta, 0.05 * c)


@both_weightings
@pytest.mark.parametrize("kind", [wima.Scaffold, wima.FedDyn])
def test_at_the_unweighted_optimum_exact_memories_let_nobody_drift(kind, weighting):
    task, zero = least_squares(), torch.zeros(4, dtype=torch.float64)
    curvature = torch.func.jacrev(lambda w: exact(task, w)[1])(zero)
    w = torch.linalg.solve(curvature, -exact(task, zero)[1])
    task = task._replace(init=lambda seed: w.clone())
    gradients, mean = exact(task, w)
    fields = {wima.Scaffold: (Control(mean), Control), wima.FedDyn: (Dyn(mean, w), Dual)}
    server, client = fields[kind]
    prepare = remember(server, [client(g) for g in gradients])
    full = {"batch_size": "full", "steps": 4, "weighting": weighting}
    for r in rounds_of(kind(), task, prepare, **full):
        assert_same(r.after, w)
        for visit in r.visits.values():
            assert_same(visit.end, w)
    assert differ(models(None, task, **full)[-1], w)


A = np.array([[1.0, 2.0, 0.5], [3.0, 0.6, 1.5], [0.5, 1.0, 2.5], [2.0, 3.0, 1.0]])
B = np.array([[1.0, -1.0, 3.0], [-2.0, 0.5, 1.0], [0.0, 2.0, -1.0], [4.0, -3.0, 0.5]])
EQUAL, UNEQUAL = (6, 6, 6, 6), (2, 4, 6, 10)  # with mini-batches of 2: K = 3, or 1, 2, 3 and 5
DESCENT = {"rounds": 200, "clients_per_round": 4, "lr": 0.1, "batch_size": 2}
different_clients = pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])


def optimum(weights: Sequence[float]) -> torch.Tensor:
    """The minimum of the weighted sum of the clients' quadratics."""
    p = np.array(weights)[:, None]
    return torch.from_numpy((p * A * B).sum(axis=0) / (p * A).sum(axis=0))


def distances(algorithm: wima.Algorithm, sizes: Sequence[int], to: torch.Tensor, **changes) -> list:
    run = trajectory(quadratics(A, B, sizes), algorithm, **{**DESCENT, **changes})
    return [float((w - to).norm()) for w in run]


@both_weightings
@different_clients
@pytest.mark.parametrize(
    "algorithm", [wima.Scaffold(), wima.Scaffold(option="I"), wima.FedDyn(alpha=2.0)], ids=str
)
def test_it_reaches_the_unweighted_optimum_of_heterogeneous_quadratics(algorithm, sizes, weighting):
    assert distances(algorithm, sizes, optimum([1] * 4), weighting=weighting)[-1] < 1e-10


@both_weightings
@different_clients
def test_fedavg_settles_away_from_the_optimum_of_heterogeneous_quadratics(sizes, weighting):
    run = trajectory(quadratics(A, B, sizes), None, **DESCENT, weighting=weighting)
    assert float((run[-1] - run[-2]).norm()) < 1e-12
    for target in (optimum([1] * 4), optimum(sizes)):
        assert min(float((w - target).norm()) for w in run[-50:]) > 1e-3


@different_clients
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_mime_reaches_the_optimum_weighted_by_examples(sizes, momentum):
    far = distances(wima.Mime(momentum=momentum), sizes, optimum(sizes), lr=0.05)
    assert far[-1] < 1e-10 < far[20] < far[0]
