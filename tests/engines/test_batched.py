"""All clients as rows of one matrix: equal to the plain engine up to float32 rounding."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima import algorithms
from wima.core.errors import UsageError
from wima.data.transform import Images
from wima.simulation.engines.batched import TRACE_AFTER, RowGradients

pytestmark = pytest.mark.usefixtures("traced_once")
SIZES = (3, 11, 6, 6, 14, 1, 9)  # unequal, one client smaller than a batch
CASES = {
    **{name: (made(), None) for name, made in algorithms.BY_NAME.items()},
    "scaffold-I": (wima.Scaffold(option="I"), None),
    "mime-sgd": (wima.Mime(momentum=0.0), None),
    "fedadam": (wima.FedAvg(), wima.Adam(lr=0.01)),
}


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data_of(x: np.ndarray, sizes: tuple[int, ...] = SIZES) -> wima.FederatedData:
    y = np.random.default_rng(1).integers(3, size=len(x))
    return wima.FederatedData.from_arrays(x, y, np.repeat(np.arange(len(sizes)), sizes))


@cache
def task_of(model=small_net) -> wima.Task:
    x = np.random.default_rng(0).normal(size=(sum(SIZES), 6)).astype("float32")
    data = data_of(x)
    return wima.make_task(model, data, (data.x, data.y))


def final(task: wima.Task, engine: str, algorithm=None, **settings) -> torch.Tensor:
    defaults = {"rounds": 12, "clients_per_round": 4, "lr": 0.1, "batch_size": 4, "eval_every": 0}
    return wima.run(task, algorithm, engine=engine, **{**defaults, **settings}).vectors["plain"]


def assert_equal_up_to_rounding(task: wima.Task, algorithm=None, **settings) -> None:
    plain, rows = (final(task, e, algorithm, **settings) for e in ("reference", "batched"))
    assert not torch.equal(plain, task.init(0))
    # Some hundred operations, each off by half a unit in the last place of float32, 2**-24.
    torch.testing.assert_close(rows, plain, rtol=0, atol=100 * 2**-24 * float(plain.abs().max()))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_on_clients_of_unequal_size(name: str, weighting: str) -> None:
    algorithm, server_opt = CASES[name]
    assert_equal_up_to_rounding(
        task_of(), algorithm, server_opt=server_opt, weighting=weighting, weight_decay=0.01
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"last_batch": "short"},
        {"batch_size": "full", "epochs": 3},
        {"steps": 5},
        {"clip": 0.5, "momentum": 0.9},
        {"epochs": 2, "batch_size": 1, "clients_per_round": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime"])
def test_every_way_to_batch_and_step(name: str, settings: dict[str, object]) -> None:
    assert_equal_up_to_rounding(task_of(), CASES[name][0], **settings)


def test_traced_gradients_equal_their_plain_twin_to_the_bit() -> None:
    task = task_of()
    assert task.workspace is not None
    rows, w = RowGradients(task.workspace), task.init(0)
    x, y = torch.randn(5, 4, 6), torch.randint(3, (5, 4))
    many = w + 0.1 * torch.randn(5, len(w))
    got = [rows(many, w[len(w) :], x, y) for _ in range(TRACE_AFTER + 3)]
    assert list(rows._traced.values()) != [rows.plain]  # it was traced
    assert all(torch.equal(g, rows.plain(many, w[len(w) :], x, y)) for g in got)


def test_rows_of_gradients_are_those_of_autograd() -> None:
    task = task_of()
    assert task.workspace is not None
    w = task.init(0) + 0.1 * torch.randn(3, len(task.init(0)))
    x, y = torch.randn(3, 4, 6), torch.randint(3, (3, 4))
    rows = RowGradients(task.workspace)(w, w[0, :0], x, y)
    for i in range(3):
        expected = task.gradient(w[i].clone(), wima.Batch(x[i], y[i]))
        torch.testing.assert_close(rows[i], expected, rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay_and_are_used() -> None:
    def half_frozen() -> nn.Module:
        model = small_net()
        model[0].weight.requires_grad_(False)
        return model

    task = task_of(half_frozen)
    assert_equal_up_to_rounding(task)
    assert task.layout is not None
    place = task.layout.slices["0.weight"]
    assert torch.equal(final(task, "batched")[place], task.init(0)[place])


def test_augmented_images_are_those_of_the_other_engines() -> None:
    x = np.random.default_rng(0).integers(256, size=(sum(SIZES), 3, 8, 8), dtype=np.uint8)
    data = data_of(x)
    net = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))  # noqa: E731
    transform = Images((0.5,) * 3, (0.25,) * 3)
    task = wima.make_task(net, data, (data.x, data.y), transform=transform)
    assert_equal_up_to_rounding(task, wima.Mime(), rounds=4, lr=0.01)


def test_dropout_is_a_function_of_the_seed() -> None:
    net = lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))  # noqa: E731
    task = task_of(net)
    state = torch.get_rng_state()
    first, again = final(task, "batched"), final(task, "batched")
    other = final(task, "batched", seed=1, cohorts=lambda seed, t: [0, 1, 2, 3])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_models_with_statistics_are_refused() -> None:
    net = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))  # noqa: E731
    with pytest.raises(UsageError, match="cannot train models with BatchNorm statistics"):
        final(task_of(net), "batched")


def test_tasks_of_plain_functions_are_refused() -> None:
    task = task_of()._replace(workspace=None)
    with pytest.raises(UsageError, match="needs a task from make_task"):
        final(task, "batched")


def test_operators_that_cannot_be_vectorised_are_refused() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum().item() > 0 else -self.linear(x)

    with pytest.raises(UsageError, match="cannot vectorise this model"):
        final(task_of(Branching), "batched")
