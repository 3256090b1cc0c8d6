"""Simulations in threads, after a fork, and inside torch's context managers: the same bytes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wima
from tests.helpers.interrupted import ends, in_a_fork

OPTIONS: dict[str, Any] = {"clients_per_round": 4, "batch_size": 20, "averagers": wima.WIMA(2)}


class Cast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.get_default_dtype())


def net() -> nn.Module:
    return nn.Sequential(
        Cast(), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(288, 5)
    )


def task() -> wima.Task:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(250, 1, 8, 8)).astype(np.float32), draw.integers(0, 5, 250)
    data = wima.FederatedData(x[:200], y[:200], np.arange(0, 201, 20))
    return wima.make_task(net, data, (x[200:], y[200:]))


def result(task: wima.Task, engine: str = "serial", rounds: int = 2) -> bytes:
    workers = 2 if engine == "processes" else None
    run = wima.run(task, engine=engine, workers=workers, rounds=rounds, **OPTIONS)
    models = torch.cat(list(run.vectors.values())).numpy().tobytes()
    return models + repr(run.curve("plain", "loss")).encode()


def test_200_runs_in_four_threads_give_the_same_bytes():
    shared = task()

    def one(k: int) -> bytes:
        return result(shared if k % 2 else task())

    with ThreadPoolExecutor(4) as threads:
        results = set(threads.map(one, range(200)))
    assert results == {result(task())}


@contextlib.contextmanager
def paused(engine: str = "serial") -> Iterator[tuple[wima.Simulation, threading.Event]]:
    """A simulation that stands in its second round, in another thread, until the event."""
    reached, proceed = threading.Event(), threading.Event()

    def cohort(seed: int, t: int) -> list[int]:
        if t == 1:
            reached.set()
            proceed.wait(60)
        return [0, 1, 2, 3]

    options = {**OPTIONS, "cohorts": cohort, "eval_every": 0, "eval_last": 1}
    with wima.simulate(task(), rounds=3, engine=engine, **options) as simulation:
        next(simulation)
        other = threading.Thread(target=next, args=(simulation,))
        other.start()
        try:
            assert reached.wait(60)
            yield simulation, proceed
        finally:
            proceed.set()
            other.join()


def test_a_second_next_while_one_is_running_is_refused_and_harms_nothing():
    with paused() as (simulation, proceed):
        with pytest.raises(wima.UsageError, match=r"Round 2 of this simulation is .* running"):
            next(simulation)
        proceed.set()
        assert simulation.t in (1, 2)
    simulation = wima.simulate(task(), rounds=3, **OPTIONS)
    assert [record.t for record in simulation] == [1, 2, 3]


def test_after_a_fork_workers_belong_to_the_parent():
    with wima.simulate(task(), rounds=3, engine="processes", workers=2, **OPTIONS) as simulation:
        next(simulation)

        def child() -> None:
            with pytest.raises(wima.UsageError, match=r"made by process \d+.*engine 'serial'"):
                next(simulation)

        assert ends(in_a_fork(child)) == 0
        assert [record.t for record in simulation] == [2, 3]


def test_a_fork_during_a_round_can_run_simulations():
    with paused() as (_, proceed):  # its thread, and the lock that it holds, are not in the child

        def child() -> None:
            assert result(task())

        process = in_a_fork(child)
        assert ends(process) == 0
        proceed.set()


DAEMON = """
import threading
from tests.engines.test_threads import OPTIONS, task
import wima

started = threading.Event()

def work():
    for record in wima.simulate(task(), rounds=10**6, engine={engine!r}, workers=2, **OPTIONS):
        started.set()

threading.Thread(target=work, daemon=True).start()
assert started.wait(120)
"""


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_python_ends_while_a_daemon_thread_simulates(engine, cold):
    command = [sys.executable, "-c", DAEMON.format(engine=engine)]
    for _ in range(2):  # whether the thread is in torch at the end is chance
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert (done.returncode, done.stderr) == (0, "")


@contextlib.contextmanager
def setting(name: str, value: Any) -> Iterator[None]:
    """A global setting of torch that has this value for a while."""
    before = getattr(torch, f"get_{name}")()
    getattr(torch, f"set_{name}")(value)
    try:
        yield
    finally:
        getattr(torch, f"set_{name}")(before)


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


@cache
def usual() -> bytes:
    return result(task())


@pytest.mark.parametrize("engine", ["serial", "processes", "reference"])
@pytest.mark.parametrize(
    "around",
    [lambda: torch.autocast("cpu"), torch.no_grad, torch.inference_mode],
    ids=["autocast", "no_grad", "inference_mode"],
)
def test_modes_of_torch_around_a_run_change_nothing(engine: str, around: Callable[[], Any]):
    with around():
        inside = task()
        assert result(inside, engine) == usual()
    made_before = task()
    with around():
        assert result(made_before, engine) == usual()


@pytest.mark.parametrize(
    "around",
    [
        lambda: setting("default_dtype", torch.float64),
        lambda: setting("float32_matmul_precision", "medium"),
        without_mkldnn,
    ],
    ids=["float64", "matmul in bfloat16", "no mkldnn"],
)
def test_workers_have_the_settings_of_torch_that_decide_bytes(around: Callable[[], Any]):
    with around():
        assert result(task(), "processes", rounds=4) == result(task(), rounds=4)


def test_a_default_dtype_that_changed_since_the_task_was_made_is_refused():
    before = task()
    with (
        setting("default_dtype", torch.float64),
        pytest.raises(wima.UsageError, match=r"float64.*float32"),
    ):
        result(before)
