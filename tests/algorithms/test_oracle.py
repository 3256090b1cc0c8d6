"""Every algorithm, on every engine, is the naive transliteration of its paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import combinations, product
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import wima
from tests.helpers import pseudocode
from tests.helpers.pools import Lasting
from tests.helpers.pseudocode import Problem
from wima import SGD, Adagrad, Adam, FederatedData, LocalSGD, Momentum, Task, Yogi
from wima.simulation.local import batches

SEED, SIZES = 5, (3, 14, 8, 5, 11, 6)
CLIENT = {"batch_size": 3, "epochs": 1, "weight_decay": 0.01}  # K_i = 1, 5, 3, 2, 4, 2
# Cohorts of one to four clients; client 5 comes late, clients 0 and 1 skip rounds.
COHORTS = [[0, 1, 2], [1, 3], [2], [0, 2, 3, 4], [1, 4], [0, 1, 5], [3, 4, 5]]
ROUNDS = 20  # of the network; the least-squares problem has one round per cohort
ENGINES = ("reference", "serial", "processes")


class Case(NamedTuple):
    """An algorithm with its server optimizer, and the same from the papers."""

    algorithm: wima.Algorithm
    expected: Callable[[Problem], list]
    server_opt: object = None


def case(made: object, naive: Callable, *server_opt: object, **parameters: object) -> Case:
    return Case(made, partial(naive, **parameters), *server_opt)


ADAPTIVE = {"beta1": 0.8, "beta2": 0.9, "tau": 0.01, "v0": 1e-4}
FEDDYN, ADABEST = {"alpha": 0.1}, {"mu": 0.05, "beta": 0.6}
NESTEROV, MEAN = {"nesterov": True}, {"serve": "mean"}
FedAvg, naive = wima.FedAvg(), pseudocode
CASES = {
    "fedavg": case(FedAvg, naive.fedavg, SGD(lr=0.7), server_lr=0.7),
    "fedavgm": case(FedAvg, naive.fedavgm, Momentum(lr=0.3), beta=0.9, server_lr=0.3),
    "fedavgm-nesterov": case(
        FedAvg, naive.fedavgm, Momentum(lr=0.2, **NESTEROV), beta=0.9, server_lr=0.2, **NESTEROV
    ),
    "fedprox": case(wima.FedProx(mu=0.4), naive.fedprox, mu=0.4),
    "scaffold-II": case(wima.Scaffold(), naive.scaffold),
    "scaffold-I": case(wima.Scaffold(option="I"), naive.scaffold, option="I"),
    "feddyn": case(wima.FedDyn(**FEDDYN), naive.feddyn, **FEDDYN),
    "feddyn-mean": case(wima.FedDyn(**FEDDYN, serve_mean=True), naive.feddyn, **FEDDYN, **MEAN),
    "adabest": case(wima.AdaBest(**ADABEST), naive.adabest, **ADABEST),
    "adabest-mean": case(
        wima.AdaBest(**ADABEST, serve_mean=True), naive.adabest, **ADABEST, **MEAN
    ),
    "fedcm": case(wima.FedCM(alpha=0.3), naive.fedcm, SGD(lr=0.9), alpha=0.3, server_lr=0.9),
    "fedacg": case(wima.FedACG(lam=0.7, beta=0.2), naive.fedacg, lam=0.7, beta=0.2),
    "mime": case(wima.Mime(momentum=0), naive.mime, server_lr=1.0),
    "mime-momentum": case(wima.Mime(), naive.mime, SGD(lr=0.2), beta=0.9, server_lr=0.2),
    "mimelite": case(wima.MimeLite(), naive.mimelite, SGD(lr=0.2), beta=0.9, server_lr=0.2),
    "fedadam": case(FedAvg, naive.fedadam, Adam(lr=0.05, **ADAPTIVE), server_lr=0.05, **ADAPTIVE),
    "fedyogi": case(FedAvg, naive.fedyogi, Yogi(lr=0.05, **ADAPTIVE), server_lr=0.05, **ADAPTIVE),
    "fedadagrad": case(FedAvg, naive.fedadagrad, Adagrad(tau=0.01), tau=0.01, server_lr=0.1),
}


def examples(dtype: type) -> FederatedData:
    """Clients that differ in size, place and spread; labels in float32, linear maps in float64."""
    random = np.random.default_rng(0)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    place, spread = random.normal(size=(len(SIZES), 4)), random.uniform(0.5, 1.5, len(SIZES))
    x = place[client] + spread[client, None] * random.normal(size=(sum(SIZES), 4))
    if dtype is np.float32:
        y = (x @ random.normal(size=(4, 3))).argmax(axis=1)
    else:
        y = (x * random.normal(size=(len(SIZES), 4))[client]).sum(axis=1)
    return FederatedData.from_arrays(x.astype(dtype), y, client)


@cache
def least_squares() -> Task:
    """Client i has the loss 1/2 mean (x w - y)^2 with an optimum of its own, in float64."""

    def gradient(w, batch):
        return batch.x.T @ (batch.x @ w - batch.y) / len(batch.x)

    w0 = torch.from_numpy(np.random.default_rng(1).normal(size=4))
    return Task(examples(np.float64), lambda seed: w0.clone(), gradient, lambda w: {})


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@cache
def classification() -> Task:
    """The network, in float32."""
    data = examples(np.float32)
    return wima.make_task(network, data, (data.x, data.y))


UNBOUND = network().double()


def entropy(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The network's loss at a flat w in float64, by a module that no engine knows."""
    parameters, used = {}, 0
    for name, p in UNBOUND.named_parameters():
        parameters[name] = w[used : used + prod(p.shape)].reshape(p.shape)
        used += prod(p.shape)
    return cross_entropy(functional_call(UNBOUND, parameters, (x.double(),)), y)


def squared_error(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x @ w - y) ** 2).mean() / 2


def steps(i: int) -> int:
    return ceil(CLIENT["epochs"] * SIZES[i] / CLIENT["batch_size"])


@cache
def expected(name: str, task_of, rounds: int, weighting: str, decay: float = 1.0) -> list:
    """The models of the pseudo-code, in float64, on the mini-batches of the run."""
    task, sgd = task_of(), LocalSGD(**CLIENT)
    loss = squared_error if task_of is least_squares else entropy
    visit = cache(lambda i, t: list(batches(task.data, i, sgd, SEED, t)))

    def gradient_of(w, x, y):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(loss(w, x, y), w)[0] + CLIENT["weight_decay"] * w.detach()

    problem = Problem(
        w0=task.init(SEED).double(),
        sizes=SIZES,
        cohorts=[COHORTS[t % len(COHORTS)] for t in range(rounds)],
        gradient=lambda y, i, t, k: gradient_of(y, visit(i, t)[k].x, visit(i, t)[k].y),
        full_gradient=lambda w, i, t: gradient_of(w, *map(torch.from_numpy, task.data.client(i))),
        steps=steps,
        lr=lambda t: 0.1 * decay**t,
        weighting=weighting,
    )
    return CASES[name].expected(problem)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pools():
    how = (LocalSGD(**CLIENT), SEED)
    lasting = {task_of: Lasting(task_of(), *how) for task_of in (least_squares, classification)}
    yield lasting
    for pool in lasting.values():
        pool.processes.close()


def play(name: str, task_of, rounds: int, engine: str, weighting: str, **settings) -> list:
    """The served models of a run; they are w itself, unless means are served."""
    case, models = CASES[name], []
    settings = {"lr": 0.1, "clients_per_round": 4, **CLIENT, **settings, "eval_every": 0}
    cohorts = {"cohorts": lambda seed, t: COHORTS[t % len(COHORTS)], "rounds": rounds, "seed": SEED}
    settings |= {"server_opt": case.server_opt, "weighting": weighting, "engine": engine}
    with wima.simulate(task_of(), case.algorithm, **cohorts, **settings) as simulation:
        for _ in simulation:
            models.append(simulation.vectors()["plain"].clone())
            assert name.endswith("mean") or torch.equal(models[-1], simulation.w)
    return models


def relative_error(models: list, expected: list) -> float:
    """The largest error of any entry in any round, relative to the largest entry of that round."""
    errors = [(w - e).abs().max() / e.abs().max() for w, e in zip(models, expected, strict=True)]
    return float(max(errors))


def in_pools(engine: str, task_of, request) -> None:
    """Let a run on `processes` take the workers that are there."""
    if engine == "processes":
        pool = request.getfixturevalue("pools")[task_of]
        request.getfixturevalue("monkeypatch").setattr(
            "wima.simulation.engines.auto.Processes", lambda setup, *_: pool.engine(setup)
        )


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_algorithms_are_their_pseudocode_on_heterogeneous_least_squares(
    name, engine, weighting, request
):
    in_pools(engine, least_squares, request)
    run = least_squares, len(COHORTS)
    models = play(name, *run, engine, weighting)
    assert relative_error(models, expected(name, *run, weighting)) < 1e-12


# Float32 keeps 2^-24 = 6e-8 of a number. A visit's roundings add up, then cohorts average them and
# training forgets them: 20 rounds stay within 11 units (n = 36 runs). 32 are allowed; another
# weighting, the smallest of mistakes, is off by 2e5.
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("engine", [*ENGINES, "batched"])
@pytest.mark.parametrize("name", CASES)
def test_algorithms_are_their_pseudocode_on_a_network_up_to_float32_rounding(
    name, engine, weighting, request, traced_once
):
    in_pools(engine, classification, request)
    models = play(name, classification, ROUNDS, engine, weighting)
    right = expected(name, classification, ROUNDS, weighting)
    error = relative_error(models, right)
    assert models[-1].dtype == torch.float32 and error < 32 * 2**-24


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["scaffold-I", "scaffold-II", "fedcm", "mime-momentum", "feddyn"])
def test_algorithms_are_their_pseudocode_under_a_falling_rate(name, engine, request):
    in_pools(engine, least_squares, request)
    run = least_squares, len(COHORTS)
    constant = play(name, *run, engine, "examples")
    models = play(name, *run, engine, "examples", schedule=wima.Exponential(decay=0.7))
    assert relative_error(models, expected(name, *run, "examples", decay=0.7)) < 1e-12
    assert relative_error(models, constant) > 0.01


def test_workers_started_by_the_run_itself_play_the_pseudocode():
    run = least_squares, len(COHORTS)
    models = play("mime-momentum", *run, "processes", "examples", workers=2)
    assert relative_error(models, expected("mime-momentum", *run, "examples")) < 1e-12


def test_the_problems_tell_all_algorithms_and_weightings_apart():
    for task_of, rounds in ((least_squares, len(COHORTS)), (classification, ROUNDS)):
        kinds = product(CASES, ["examples", "uniform"])
        models = {kind: expected(kind[0], task_of, rounds, kind[1]) for kind in kinds}
        for one, other in combinations(models, 2):
            assert relative_error(models[one], models[other]) > 0.01, (one, other)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("engine", ["reference", "serial"])
@pytest.mark.parametrize("name", ["fedprox", "scaffold-II", "fedcm", "feddyn"])
def test_a_gradient_function_may_return_the_model_or_a_vector_that_it_keeps(name, engine, kept):
    """The gradients of |w|^2/2 and <a, w> are w and a: engines must not write to them."""
    w0, a = torch.tensor([[3.0, 1.0], [1.0, -2.0]], dtype=torch.float64)
    task = Task(
        examples(np.float64), lambda seed: w0.clone(), lambda w, _: a if kept else w, lambda w: {}
    )
    models = play(name, lambda: task, len(COHORTS), engine, "examples", weight_decay=0)
    problem = Problem(
        w0=w0,
        sizes=SIZES,
        cohorts=COHORTS,
        gradient=lambda y, i, t, k: torch.tensor([1.0, -2.0], dtype=torch.float64) if kept else y,
        full_gradient=lambda w, i, t: w,
        steps=steps,
        lr=lambda t: 0.1,
    )
    assert relative_error(models, CASES[name].expected(problem)) < 1e-12
