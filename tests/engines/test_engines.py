"""All engines play the same rounds, to the bit, and say where they failed."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import wima
from wima.algorithms.base import Algorithm, Local
from wima.algorithms.server_opt import SGD
from wima.core.vector import vectors
from wima.core.workers import Worker
from wima.data.federated import FederatedData
from wima.data.sets.digits import digits
from wima.models import MLP, FemnistCNN, SmallCNN
from wima.simulation.local import batches
from wima.simulation.options import LocalSGD
from wima.simulation.task import Task

CLIENT = {"batch_size": 7, "epochs": 2, "weight_decay": 0.1, "momentum": 0.6, "clip": 0.5}
EVERYTHING_ON = {**CLIENT, "server_opt": SGD(momentum=0.9), "clients_per_round": 4, "seed": 3}
IN_PROCESSES = {"engine": "processes", "workers": 2, "rounds": 3, "clients_per_round": 3, "lr": 0.1}


def norm_and_dropout() -> nn.Module:
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    return nn.Sequential(hidden, nn.Dropout(0.5), nn.Linear(16, 10))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def bundle():
    return digits(num_clients=30, alpha=0.5)


def make_task(bundle, model) -> Task:
    return wima.make_task(model, bundle.train, (bundle.x_test, bundle.y_test))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def uneven(model=small, mark: int | None = None) -> Task:
    """Clients of several sizes; the examples of client `mark` are full of 99s."""
    random, sizes = np.random.default_rng(1), (9, 20, 14, 5, 11)
    x = random.normal(size=(sum(sizes), 6)).astype(np.float32)
    y = random.integers(0, 3, sum(sizes))
    data, test = FederatedData(x, y, np.append(0, np.cumsum(sizes))), (x.copy(), y)
    if mark is not None:
        data.client(mark)[0][:] = 99
    return wima.make_task(model, data, test)


def final(task: Task, algorithm=None, engine: str = "reference", rounds: int = 3, **settings):
    settings = {"clients_per_round": 3, "lr": 0.1, "eval_every": 0, **settings}
    return wima.run(task, algorithm, engine=engine, rounds=rounds, **settings).vectors["plain"]


@contextmanager
def parent_unchanged():
    """Nothing that happens inside moves torch's threads or its global generator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state()
        yield
        assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)


def alive(workers) -> list[int]:
    return [worker.process.pid for worker in workers if worker.process.poll() is None]


def test_engines_agree_to_the_bit_whatever_the_number_of_workers(bundle):
    task = make_task(bundle, MLP)
    expected = final(task, **EVERYTHING_ON)
    assert not torch.equal(expected, task.init(EVERYTHING_ON["seed"]))
    assert torch.equal(final(task, engine="serial", **EVERYTHING_ON), expected)
    for workers in (1, 2, 3):
        with parent_unchanged():
            w = final(task, engine="processes", workers=workers, **EVERYTHING_ON)
        assert torch.equal(w, expected), workers


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("model", [SmallCNN, dropout, norm_and_dropout])
def test_serial_is_the_reference_to_the_bit_and_leaves_no_trace(bundle, model, weighting):
    task = make_task(bundle, model)
    settings = {**EVERYTHING_ON, "rounds": 2, "weighting": weighting, "eval_every": 1}
    with parent_unchanged():
        one, two = (final(task, engine=engine, **settings) for engine in ("reference", "serial"))
    assert torch.equal(one, two)


def test_engines_agree_to_the_bit_on_the_network_with_all_cheaper_layers():
    random = np.random.default_rng(0)
    x, y = random.random((24, 1, 28, 28), dtype=np.float32), random.integers(0, 62, 24)
    task = wima.make_task(FemnistCNN, FederatedData(x, y, np.arange(0, 25, 6)), (x, y))
    settings = {"rounds": 2, "clients_per_round": 2, "batch_size": 5}
    with parent_unchanged():
        expected = final(task, **settings)
        assert torch.equal(final(task, engine="serial", **settings), expected)
        assert torch.equal(final(task, engine="processes", workers=2, **settings), expected)


@dataclass(frozen=True, kw_only=True)
class Toy(Algorithm):
    """Uses all that an algorithm can declare."""

    full_gradient: str = "none"
    path_gradient: bool = True
    extra_mean: str = "uniform"
    anchored: bool = False

    def init(self, w):
        return 0.01 * w, torch.zeros_like(w)

    def client_init(self, w):
        return torch.zeros_like(w), 0

    def observe(self, gradient, server):
        return server[0], gradient

    def local(self, w, server, client):
        (m, c), (h, visits) = server, client
        shift = 0.5 * c - 0.1 * h / (1 + visits) + 0.1 * m
        return Local(w + 0.1 * m, scale=0.9, prox=0.05, shift=shift, anchored=self.anchored)

    def client_finish(self, visit, server, client):
        h, visits = client
        mean_step = visit.delta / (visit.steps * visit.lr)
        extra = visit.path_gradient + (0 if visit.gradient is None else visit.gradient)
        return extra, (0.5 * h + mean_step, visits + 1)

    def server_update(self, w, delta, extra, server, fraction):
        m, c = 0.5 * server[0] + fraction * extra, server[1]
        return delta + 0.1 * m, (m, c)


CHOICES = product(("none", "own", "cohort"), ("uniform", "weighted"), (False, True))
TOYS = [Toy(full_gradient=g, extra_mean=mean, anchored=anchored) for g, mean, anchored in CHOICES]


@pytest.mark.parametrize("toy", TOYS, ids=repr)
def test_all_declared_fields_mean_the_same_in_serial(toy):
    task = uneven()
    one, two = (final(task, toy, engine, **EVERYTHING_ON) for engine in ("reference", "serial"))
    assert torch.equal(one, two)


@pytest.mark.parametrize("toy", [TOYS[5], TOYS[10]], ids=repr)
def test_all_declared_fields_mean_the_same_in_processes(bundle, toy):
    task = make_task(bundle, norm_and_dropout)
    expected = final(task, toy, **EVERYTHING_ON)
    assert torch.equal(final(task, toy, "processes", workers=2, **EVERYTHING_ON), expected)


def test_declared_fields_all_matter():
    task = uneven()
    results = [task.init(0)]
    for toy in [None, *TOYS]:
        results.append(final(task, toy, rounds=3, batch_size=4))
        assert not any(torch.equal(results[-1], other) for other in results[:-1]), toy


@dataclass(frozen=True, kw_only=True)
class Fixed(Algorithm):
    """Sends the same made-up problem to everyone."""

    def local(self, w, server, client):
        return Local(0.9 * w, scale=0.8, prox=0.3, shift=0.05 * torch.sin(torch.arange(len(w))))


def naive_round(model, w, local: Local, data, cohort, sgd, t, lr, weighting):
    """One round by torch's own optimizer on the local objective, written as a loss."""
    total, weights = torch.zeros_like(w), 0.0
    for i in cohort:
        vector_to_parameters(local.start.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=sgd.momentum)
        for batch in batches(data, i, sgd, 3, t):
            y = parameters_to_vector(model.parameters())
            loss = cross_entropy(model(batch.x), batch.y) + sgd.weight_decay / 2 * y.square().sum()
            pull = local.prox / 2 * (y - local.start).square().sum() + (local.shift * y).sum()
            optimizer.zero_grad()
            (local.scale * loss + pull).backward()
            clip_grad_norm_(model.parameters(), sgd.clip or float("inf"))
            optimizer.step()
        weight = data.size(i) if weighting == "examples" else 1
        total += weight * (local.start - parameters_to_vector(model.parameters()).detach())
        weights += weight
    return w - total / weights


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("algorithm", [wima.FedAvg(), Fixed()])
@pytest.mark.parametrize("options", [{}, {**CLIENT, "last_batch": "short"}])
def test_reference_is_sgd_on_the_local_objective(algorithm, options, weighting):
    task, model, lr = uneven(), small(), 0.2
    settings = {**options, "engine": "reference", "rounds": 3, "clients_per_round": 3, "seed": 3}
    simulation = wima.simulate(task, algorithm, weighting=weighting, lr=lr, **settings)
    w, sgd = simulation.w.clone(), LocalSGD(**options)
    for t, record in enumerate(simulation):
        local = algorithm.local(w, (), ())
        w = naive_round(model, w, local, task.data, record.cohort, sgd, t, lr, weighting)
        torch.testing.assert_close(simulation.w, w, rtol=1e-5, atol=2e-6)


HOOKS = {  # hook: where its second call is, and how many vectors it is given
    "init": ("round 0, init", 1),
    "client_init": ("round 1, client 3, client_init", 1),
    "observe": ("round 1, observe", 3),
    "local": ("round 1, client 3, local", 4),
    "client_finish": ("round 1, client 3, client_finish", 6),
    "server_update": ("round 1, server_update", 5),
    "served": ("round 1, served", 3),
}


def play_with(hook: str, act) -> None:
    """Two rounds of one client each; in the hook, `act` is called with its arguments first."""

    def hooked(self, *arguments):
        if len(next(vectors(arguments))) > 1:  # else it is tried, to find out what is sent
            act(*arguments)
        return getattr(Toy, hook)(self, *arguments)

    algorithm = type("Hooked", (Toy,), {hook: hooked})(full_gradient="cohort")
    final(uneven(), algorithm, rounds=2, cohorts=lambda seed, t: [t + 2], clients_per_round=1)


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_in_a_hook_names_round_client_and_hook(hook):
    calls = []

    def fail(*_):
        calls.append(hook)
        if hook == "init" or len(calls) == 2:
            raise ZeroDivisionError("oops")

    with pytest.raises(wima.RunError, match=f"^{HOOKS[hook][0]}: ZeroDivisionError: oops"):
        play_with(hook, fail)


@pytest.mark.parametrize(("hook", "n"), [(h, n) for h in HOOKS for n in range(HOOKS[h][1])])
def test_the_reference_catches_a_hook_that_writes_to_its_arguments(hook, n):
    with pytest.raises(wima.RunError, match=f"{hook}.* changed one of its arguments in place"):
        play_with(hook, lambda *arguments: list(vectors(arguments))[n].add_(1))


@pytest.mark.parametrize("engine", ["reference", "serial", "processes"])
def test_an_error_in_a_clients_training_names_round_and_client_and_ends_the_workers(engine):
    class Choosy(nn.Linear):
        def forward(self, x):
            if bool((x == 99).any()):
                raise ArithmeticError("not 99")
            return super().forward(x)

    task, cohorts = uneven(lambda: Choosy(6, 3), mark=3), lambda seed, t: [2 * t, 2 * t + 1]
    simulation = wima.simulate(task, cohorts=cohorts, **{**IN_PROCESSES, "engine": engine})
    workers = simulation._engine._workers if engine == "processes" else []
    next(simulation)
    assert len(alive(workers)) == len(workers)
    with pytest.raises(wima.RunError, match=r"^round 1, client 3, .*ArithmeticError: not 99"):
        next(simulation)
    assert not alive(workers)


def test_a_killed_worker_is_replaced_and_nothing_changes():
    with wima.simulate(uneven(), **IN_PROCESSES) as simulation:
        workers = simulation._engine._workers
        next(simulation)
        (first,) = alive(workers)
        os.kill(first, signal.SIGKILL)
        next(iter(workers)).process.wait()  # a loaded machine takes its time
        for _ in simulation:
            assert alive(workers) and alive(workers) != [first]
    expected = wima.run(uneven(), **{**IN_PROCESSES, "engine": "serial"}).vectors["plain"]
    assert torch.equal(simulation.w, expected) and not alive(workers)


def when_started(monkeypatch, act) -> None:
    """Call `act` with each worker right after its start, while it still imports modules."""

    class Watched(Worker):
        def __init__(self, module, descriptors):
            super().__init__(module, descriptors)
            act(self.process)

    monkeypatch.setattr("wima.simulation.engines.processes.Worker", Watched)


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_worker_that_is_killed_at_its_start_is_started_again_up_to_three_times(
    deaths, monkeypatch
):
    started = []

    def kill(process):
        started.append(process)
        if len(started) <= deaths:
            process.kill()

    when_started(monkeypatch, kill)
    expected = final(uneven(), engine="serial", **EVERYTHING_ON)
    if deaths == 2:
        w = final(uneven(), engine="processes", workers=2, **EVERYTHING_ON)
        assert torch.equal(w, expected) and len(started) == 3
    else:
        with pytest.raises(wima.RunError, match=r"start of a worker.*3 workers have exited"):
            final(uneven(), engine="processes", workers=3, **EVERYTHING_ON)
    assert all(process.poll() is not None for process in started)


def test_workers_outlive_signals_to_the_whole_process_group_and_end_with_their_input(monkeypatch):
    def interrupt(process):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM) * 30:
            os.kill(process.pid, number)

    when_started(monkeypatch, interrupt)
    with wima.simulate(uneven(), **IN_PROCESSES) as simulation:
        workers = list(simulation._engine._workers)
        for _ in simulation:
            interrupt(workers[0].process)
            assert alive(workers)
    assert [worker.process.returncode for worker in workers] == [0]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_leaving_a_run_early_ends_its_workers(how):
    simulation = wima.simulate(uneven(), **IN_PROCESSES)
    workers = simulation._engine._workers
    assert next(simulation).t == 1 and alive(workers)
    if how == "close":
        simulation.close()
    del simulation
    assert not alive(workers)


def test_a_model_that_cannot_be_sent_to_workers_is_refused():
    lock = threading.Lock()
    with pytest.raises(wima.UsageError, match=r"cannot send this model .*use engine 'serial'"):
        final(uneven(lambda: (lock, small())[1]), engine="processes")


def test_unknown_engines_are_refused_with_the_nearest_one():
    with pytest.raises(wima.UsageError, match="Unknown engine 'seriall'; did you mean 'serial'"):
        final(uneven(), engine="seriall")


def logged(task, log):
    """The task, with a gradient that first writes (pid, round, client) to a file."""

    def gradient(w, batch):
        with log.open("a") as file:
            file.write(f"{os.getpid()} {batch.address[1]} {batch.address[2]}\n")
        return task.gradient(w, batch)

    return task._replace(gradient=gradient, workspace=None)


def test_this_process_and_its_children_share_the_work(tmp_path):
    task = logged(uneven(), tmp_path / "log")
    w = final(task, engine="processes", workers=2, **EVERYTHING_ON)
    pids = {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) == 2 and str(os.getpid()) in pids
    assert torch.equal(w, final(uneven(), engine="serial", **EVERYTHING_ON))


def test_the_next_round_begins_while_models_are_evaluated(tmp_path):
    log = tmp_path / "log"
    options = {**IN_PROCESSES, "clients_per_round": 3, "eval_every": 1}
    with wima.simulate(logged(uneven(), log), **options) as simulation:
        record, w = next(simulation), simulation.w.clone()
        until = time.monotonic() + 30
        while not any(line.split()[1] == "1" for line in log.read_text().splitlines()):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert record.t == simulation.t == 1 and torch.equal(w, simulation.w)


class Fails(wima.FedAvg):
    """Cannot make the local problem of round 1."""

    def local(self, w, server, client):
        if server:
            raise ArithmeticError("no")
        return super().local(w, server, client)

    def server_update(self, w, delta, extra, server, fraction):
        return delta, (1.0,)


@pytest.mark.parametrize("kind", ["hook", "cohort", "training"])
def test_an_error_in_a_round_that_was_begun_is_told_by_that_round(kind):
    def cohorts(seed, t):
        if kind == "cohort" and t == 1:
            raise ArithmeticError("no")
        return [0, 1, 2] if t == 0 else [2, 3, 4]

    class Choosy(nn.Linear):
        def forward(self, x):
            if kind == "training" and bool((x == 99).any()):
                raise ArithmeticError("no")
            return super().forward(x)

    algorithm = Fails() if kind == "hook" else wima.FedAvg()
    task = uneven(lambda: Choosy(6, 3), mark=3)
    simulation = wima.simulate(
        task, algorithm, cohorts=cohorts, **{**IN_PROCESSES, "eval_every": 1}
    )
    assert next(simulation).metrics
    with pytest.raises(ArithmeticError if kind == "cohort" else wima.RunError, match="no"):
        next(simulation)


def test_all_engines_take_denormal_numbers_for_zero_and_leave_the_caller_as_it_was():
    seen = []

    def gradient(w, batch):
        seen.append(float(torch.tensor(1e-40) * 1))
        return torch.zeros_like(w)

    task = uneven()._replace(gradient=gradient, workspace=None)
    for engine in ("reference", "serial"):
        final(task, engine=engine)
    assert seen and not any(seen)
    assert float(torch.tensor(1e-40) * 1) > 0
