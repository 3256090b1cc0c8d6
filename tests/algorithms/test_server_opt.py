"""Server optimizers are the formulas of their papers, and torch's where it has them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import wima
from tests.helpers.least_squares import assert_same, differ, least_squares, models
from wima import SGD, Adagrad, Adam, Momentum, ServerOpt, UsageError, Yogi

STEPS = 12


def gradients(d: int = 6) -> list[np.ndarray]:
    """Of very different sizes in each coordinate, with a sign change now and then."""
    return list(np.random.default_rng(0).normal(size=(STEPS, d)) * np.logspace(-4, 2, d))


def steps_of(opt: ServerOpt, sequence: list[np.ndarray]) -> list[np.ndarray]:
    state, taken = opt.init(torch.zeros(len(sequence[0]), dtype=torch.float64)), []
    for g in sequence:
        step, state = opt.update(torch.from_numpy(g), state)
        taken.append(step.numpy())
    return taken


def torch_steps(kind: type, options: dict, sequence: list[np.ndarray]) -> list[np.ndarray]:
    w = torch.zeros(len(sequence[0]), dtype=torch.float64, requires_grad=True)
    optimizer, taken = kind([w], **options), []
    for g in sequence:
        before = w.detach().clone()
        w.grad = torch.from_numpy(g.copy())
        optimizer.step()
        taken.append((before - w.detach()).numpy())
    return taken


OF_TORCH = [
    *(
        (SGD(**options), torch.optim.SGD, options)
        for options in (
            {"lr": 1.0},
            {"lr": 0.3},
            {"lr": 1.0, "momentum": 0.9},
            {"lr": 0.5, "momentum": 0.5},
            {"lr": 1.0, "momentum": 0.9, "nesterov": True},
            {"lr": 0.1, "momentum": 0.99, "nesterov": True},
        )
    ),
    (
        Adam(lr=0.1, beta1=0.8, beta2=0.95, tau=1e-2, bias_correction=True),
        torch.optim.Adam,
        {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-2},
    ),
    *(
        (
            Adagrad(lr=0.1, tau=1e-3, v0=v0),
            torch.optim.Adagrad,
            {"lr": 0.1, "eps": 1e-3, "initial_accumulator_value": v0},
        )
        for v0 in (0.0, 0.3)
    ),
]


@pytest.mark.parametrize(("opt", "kind", "options"), OF_TORCH, ids=str)
def test_steps_are_those_of_torch(opt, kind, options):
    # Differences of models lose digits: torch's steps are known to 1e-16 of w, not of the step.
    expected = torch_steps(kind, options, gradients())
    np.testing.assert_allclose(steps_of(opt, gradients()), expected, rtol=1e-9, atol=1e-13)


def naive_reddi(sequence, rule, lr, beta1, beta2, tau, v0, corrected):
    """Reddi et al., ICLR 2021, Algorithm 2, coordinate by coordinate."""
    taken = np.zeros((len(sequence), len(sequence[0])))
    for j in range(len(sequence[0])):
        m, v = 0.0, v0
        for k, g in enumerate((g[j] for g in sequence), start=1):
            m = beta1 * m + (1 - beta1) * g
            v = rule(v, g * g, beta2)
            m_hat, v_hat = m, v
            if corrected:
                m_hat, v_hat = m / (1 - beta1**k), v / (1 - beta2**k)
            taken[k - 1, j] = lr * m_hat / (v_hat**0.5 + tau)
    return taken


def adam_rule(v, g2, beta2):
    return beta2 * v + (1 - beta2) * g2


def yogi_rule(v, g2, beta2):
    sign = 1 if v > g2 else -1 if v < g2 else 0
    return v - (1 - beta2) * g2 * sign


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("v0", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize(
    ("beta1", "beta2", "tau"), [(0.9, 0.99, 1e-3), (0.0, 0.5, 1e-6), (0.5, 0, 1)]
)
@pytest.mark.parametrize(("kind", "rule"), [(Adam, adam_rule), (Yogi, yogi_rule)])
def test_adam_and_yogi_take_the_naive_steps(kind, rule, beta1, beta2, tau, v0, corrected):
    opt = kind(lr=0.3, beta1=beta1, beta2=beta2, tau=tau, v0=v0, bias_correction=corrected)
    expected = naive_reddi(gradients(), rule, 0.3, beta1, beta2, tau, v0, corrected)
    np.testing.assert_allclose(steps_of(opt, gradients()), expected, rtol=1e-12)


@pytest.mark.parametrize("v0", [0.0, 0.1])
@pytest.mark.parametrize("tau", [1e-3, 0.5])
@pytest.mark.parametrize("inside", [False, True])
def test_adagrad_takes_the_naive_steps(inside, tau, v0):
    v, expected = np.full(6, v0), []
    for g in gradients():
        v = v + g * g
        expected.append(0.2 * g / (np.sqrt(v + tau) if inside else np.sqrt(v) + tau))
    opt = Adagrad(lr=0.2, tau=tau, v0=v0, tau_inside=inside)
    np.testing.assert_allclose(steps_of(opt, gradients()), expected, rtol=1e-13)


def test_momentum_is_sgd_with_momentum_of_nine_tenths():
    expected = steps_of(SGD(momentum=0.9), gradients())
    np.testing.assert_array_equal(steps_of(Momentum(), gradients()), expected)


ALL = [
    SGD(),
    SGD(momentum=0.9, nesterov=True),
    Momentum(),
    Adam(),
    Adam(bias_correction=True, v0=1e-6),
    Yogi(v0=1e-6),
    Adagrad(),
    Adagrad(tau_inside=True, v0=0.1, tau=1e-6),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("opt", ALL, ids=str)
def test_updates_are_pure_and_keep_the_dtype(opt, dtype):
    state = opt.init(torch.zeros(6, dtype=dtype))
    g = torch.from_numpy(gradients()[0]).to(dtype)
    for _ in range(3):
        tensors = [g, *(part for part in state if isinstance(part, torch.Tensor))]
        before = [tensor.clone() for tensor in tensors]
        (one, after), (two, _) = opt.update(g, state), opt.update(g, state)
        assert torch.equal(one, two) and one.dtype == dtype
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
        state = after
    assert not np.any(steps_of(opt, 3 * [np.zeros(4)]))  # zero gradients leave the model unchanged


def test_without_momentum_nothing_is_remembered():
    assert SGD(lr=0.5).init(torch.ones(3)) == ()
    assert SGD(lr=0.5).update(torch.ones(3), ())[1] == ()


# On top of an algorithm.

OWN_RULE = [wima.FedDyn(alpha=0.2), wima.AdaBest(mu=0.1, beta=0.7), wima.FedACG(lam=0.6, beta=0.3)]
OTHERS = [SGD(lr=0.5), Momentum(), Momentum(lr=0.4, momentum=0.7), Adam(), Yogi(), Adagrad()]
own_rule = pytest.mark.parametrize("algorithm", OWN_RULE, ids=str)


@own_rule
def test_an_algorithm_with_its_own_server_rule_takes_plain_sgd_only(algorithm):
    assert_same(models(algorithm, server_opt=SGD()), models(algorithm))
    for opt in OTHERS:
        with pytest.raises(UsageError) as error:
            models(algorithm, server_opt=opt)
        rule = f"{type(algorithm).__name__} has its own server rule"
        for words in (rule, "lr 1", str(opt), "stack_server"):
            assert words in str(error.value)


@pytest.mark.parametrize("opt", OTHERS, ids=str)
@own_rule
def test_a_stacked_optimizer_steps_with_the_algorithms_pseudo_gradient(algorithm, opt):
    """Which is what its own rule, tested against the paper elsewhere, takes off w."""
    seen = []

    class Spy(type(algorithm)):
        def server_update(self, w, delta, extra, server, fraction):
            step, after = super().server_update(w, delta, extra, server, fraction)
            seen.append(step.numpy().copy())
            return step, after

    hyper = vars(algorithm)
    own, w0 = models(Spy(**hyper)), least_squares().init(0)
    for w, before, step in zip(own, [w0, *own], seen, strict=False):
        assert_same(w, before - torch.from_numpy(step))
    seen.clear()
    stacked = models(Spy(**hyper), server_opt=opt, stack_server=True)
    steps = torch.tensor(np.array(steps_of(opt, seen)))
    assert_same(stacked, w0 - steps.cumsum(dim=0))
    assert differ(stacked, own)


@pytest.mark.parametrize("algorithm", [wima.FedAvg(), wima.FedProx(), wima.Scaffold(), wima.Mime()])
def test_other_algorithms_take_any_optimizer(algorithm):
    play = partial(models, algorithm)
    finals = {tuple(play(server_opt=opt)[-1].tolist()) for opt in OTHERS}
    assert len(finals) == len(OTHERS) and np.isfinite(list(finals)).all()
