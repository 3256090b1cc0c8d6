"""Inside the rounds: what clients return and remember, and the optimum to which it leads.

SCAFFOLD and FedDyn end at the optimum of the *unweighted* mean of the clients' losses, whatever the
weights of the model average: their server memories count every client once, as 1/M.
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
from wima import SGD, Task, Visit
from wima.algorithms.feddyn import Dual, Dyn
from wima.algorithms.scaffold import Control


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


def cohort_gradient(task: Task, w: torch.Tensor, cohort: Sequence[int]) -> torch.Tensor:
    """The mean full gradient of a cohort, weighted by examples."""
    return sum(SIZES[i] * full_gradient(task, w, i) for i in cohort) / sum(SIZES[i] for i in cohort)


@pytest.mark.parametrize(
    ("algorithm", "batch_size"),
    [(wima.FedAvg(), "full"), *((wima.Mime(momentum=0.0), size) for size in (1, 3, "full"))],
)
def test_one_step_is_gradient_descent_on_the_cohort(algorithm, batch_size):
    task, settings = least_squares(), {"steps": 1, "server_opt": SGD(lr=0.3)}
    for r in rounds_of(algorithm, task, batch_size=batch_size, **settings):
        assert_same(r.after, r.w - 0.3 * 0.05 * cohort_gradient(task, r.w, list(r.visits)))


def test_mime_with_one_client_and_full_batches_is_gradient_descent():
    task, full = least_squares(), {"batch_size": "full", "steps": 4}
    for r in rounds_of(wima.Mime(momentum=0.0), task, clients_per_round=1, **full):
        y = r.w
        for _ in range(4):
            y = y - 0.05 * full_gradient(task, y, next(iter(r.visits)))
        assert_same(r.after, y)


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


def test_adabest_adds_up_the_drifts_of_clients_that_never_miss_a_round():
    total = dict.fromkeys(range(M), 0.0)
    for r in rounds_of(wima.AdaBest(mu=0.3, beta=0.5), clients_per_round=M):
        for i, visit in r.visits.items():
            total[i] = total[i] + 0.3 * visit.delta
            assert_same(r.remembered[i].h, total[i])


@pytest.mark.parametrize("algorithm", [wima.Mime(), wima.MimeLite()], ids=str)
def test_mime_momentum_starts_as_the_cohorts_full_gradient_and_then_accumulates(algorithm):
    task = least_squares()
    for t, r in enumerate(rounds_of(algorithm, task)):
        c = cohort_gradient(task, r.w, list(r.visits))
        assert_same(r.simulation.state.server.m, c + (0.9 * r.server.m if t else 0.0))


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


def test_scaffold_with_option_one_keeps_the_full_gradient_at_w():
    task = least_squares()
    for r in rounds_of(wima.Scaffold(option="I"), task):
        for i in r.visits:
            assert_same(r.remembered[i].c, full_gradient(task, r.w, i))


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
