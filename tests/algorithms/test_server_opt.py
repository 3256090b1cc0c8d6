"""The server's SGD against torch's, step by step."""

from __future__ import annotations

import pytest
import torch

from wima.algorithms.server_opt import SGD
from wima.core.errors import UsageError

VARIANTS = [
    {"lr": 1.0},
    {"lr": 0.3},
    {"lr": 1.0, "momentum": 0.9},
    {"lr": 0.5, "momentum": 0.5},
    {"lr": 1.0, "momentum": 0.9, "nesterov": True},
    {"lr": 0.1, "momentum": 0.99, "nesterov": True},
]


def gradients(steps: int, d: int = 5) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(d, dtype=torch.float64, generator=random) for _ in range(steps)]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_sgd_takes_the_steps_of_torch(options):
    w = torch.linspace(-1, 1, 5, dtype=torch.float64)
    parameter = torch.nn.Parameter(w.clone())
    theirs, ours = torch.optim.SGD([parameter], **options), SGD(**options)
    state = ours.init(w)
    for gradient in gradients(8):
        parameter.grad = gradient.clone()
        theirs.step()
        step, state = ours.update(gradient, state)
        w = w - step
        torch.testing.assert_close(w, parameter.detach(), rtol=1e-13, atol=1e-13)


def test_heavy_ball_steps_with_the_discounted_sum_of_gradients():
    first, second, third = gradients(3)
    optimizer = SGD(lr=0.5, momentum=0.9)
    state = optimizer.init(first)
    for gradient in (first, second, third):
        step, state = optimizer.update(gradient, state)
    torch.testing.assert_close(step, 0.5 * (0.9**2 * first + 0.9 * second + third))


def test_nesterov_looks_one_step_ahead():
    first, second = gradients(2)
    optimizer = SGD(lr=0.5, momentum=0.9, nesterov=True)
    _, state = optimizer.update(first, optimizer.init(first))
    step, _ = optimizer.update(second, state)
    torch.testing.assert_close(step, 0.5 * (second + 0.9 * (0.9 * first + second)))


def test_the_default_steps_with_the_gradient_itself():
    (gradient,) = gradients(1)
    step, _ = SGD().update(gradient, SGD().init(gradient))
    assert torch.equal(step, gradient)


def test_without_momentum_nothing_is_remembered():
    (gradient,) = gradients(1)
    optimizer = SGD(lr=0.5)
    assert optimizer.init(gradient) == ()
    assert optimizer.update(gradient, ())[1] == ()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_an_update_leaves_its_arguments_as_they_were(options):
    first, second = gradients(2)
    optimizer = SGD(**options)
    _, state = optimizer.update(first, optimizer.init(first))
    before = [tensor.clone() for tensor in (second, *state)]
    once, after_once = optimizer.update(second, state)
    twice, after_twice = optimizer.update(second, state)
    assert all(map(torch.equal, before, (second, *state)))
    assert torch.equal(once, twice) and all(map(torch.equal, after_once, after_twice))


def test_steps_have_the_dtype_of_the_gradient():
    gradient = torch.ones(3, dtype=torch.float32)
    for options in VARIANTS:
        optimizer = SGD(**options)
        assert optimizer.update(gradient, optimizer.init(gradient))[0].dtype == torch.float32


@pytest.mark.parametrize("lr", [0, -1.0, float("nan"), float("inf"), "1", True, None])
def test_a_learning_rate_that_is_no_positive_number_is_refused(lr):
    with pytest.raises(UsageError, match=r"SGD.lr must be a positive number, got"):
        SGD(lr=lr)


@pytest.mark.parametrize("momentum", [-0.1, 1, 1.5, float("nan"), "0.9", True, None])
def test_a_momentum_outside_0_to_1_is_refused(momentum):
    with pytest.raises(UsageError, match=r"SGD.momentum must be .*\[0, 1\), got"):
        SGD(momentum=momentum)


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(UsageError, match="nesterov needs a momentum"):
        SGD(nesterov=True)
