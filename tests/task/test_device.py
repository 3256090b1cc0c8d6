"""All tensors live on one device; `meta`, which computes shapes alone, stands in for a GPU."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima import algorithms
from wima.data.transform import Images
from wima.simulation.workspace import find_device, seeded


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpuu", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(wima.UsageError, match=r"cannot be used with torch .*use device 'cpu'"):
        find_device(name)


def test_seeding_leaves_the_generator_as_it_was_whatever_happens():
    cpu, before = torch.device("cpu"), torch.get_rng_state()
    draws = []
    for address in ((1, 2), (1, 2), (1, 3)):
        with seeded(cpu, "layers", *address):
            draws.append(torch.rand(3))
    with suppress(ArithmeticError), seeded(cpu, "layers", 0):
        raise ArithmeticError(torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def task_on(device: str, transform=None) -> wima.Task:
    random = np.random.default_rng(0)
    x = random.integers(256, size=(24, 3, 8, 8)).astype("uint8" if transform else "float32")
    y = random.integers(10, size=24)
    data = wima.FederatedData.from_arrays(x, y, np.repeat(np.arange(4), 6))
    net = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))  # noqa: E731
    return wima.make_task(net, data, (x, y), transform=transform, device=device)


OPTIONS = {"rounds": 2, "clients_per_round": 3, "lr": 0.1, "batch_size": 4, "momentum": 0.5}
AVERAGERS = [wima.WIMA(2), wima.EMA(), wima.SWA(), wima.LAWA(), wima.WIMA(3, part="classifier")]


@pytest.mark.parametrize("engine", ["reference", "serial", "batched", "auto"])
@pytest.mark.parametrize("name", algorithms.BY_NAME)
def test_a_round_never_leaves_the_device(name, engine):
    averagers = {f"{a.name}-{k}": a for k, a in enumerate(AVERAGERS)}
    options = {**OPTIONS, "averagers": averagers, "engine": engine, "eval_every": 0}
    result = wima.run(task_on("meta"), algorithms.BY_NAME[name](), **options)
    assert {w.device.type for w in result.vectors.values()} == {"meta"}


@pytest.mark.parametrize("server", [wima.Adam(), wima.Yogi(), wima.Adagrad(), wima.SGD(lr=0.5)])
def test_server_optimizers_stay_on_the_device(server):
    options = {**OPTIONS, "server_opt": server, "eval_every": 0}
    assert wima.run(task_on("meta"), **options).vectors["plain"].device.type == "meta"


def test_examples_are_transformed_where_they_are_stored():
    transform = Images((0.5,) * 3, (0.25,) * 3)
    for engine in ("serial", "batched"):
        options = {**OPTIONS, "engine": engine, "eval_every": 0}
        wima.run(task_on("meta", transform), **options)


def test_worker_processes_are_for_the_cpu():
    with pytest.raises(wima.UsageError, match="works on the CPU, but the task is on meta; use"):
        wima.run(task_on("meta"), engine="processes", **OPTIONS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is at hand")
@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_gpu_gives_what_the_cpu_gives_up_to_rounding(engine):
    runs = [wima.run(task_on(device), engine=engine, **OPTIONS) for device in ("cpu", "cuda")]
    w = [run.vectors["plain"].cpu() for run in runs]
    torch.testing.assert_close(*w, rtol=1e-3, atol=1e-4)
