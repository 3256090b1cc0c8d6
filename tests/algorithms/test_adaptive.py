"""Adaptive server optimizers are the formulas of their papers, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wima
from tests.helpers.toys import quadratics
from wima import SGD, Adagrad, Adam, Momentum, ServerOpt, UsageError, Yogi

STEPS = 12


def gradients(seed: int = 0, d: int = 6) -> list[np.ndarray]:
    """Of very different sizes in each coordinate, with a sign change now and then."""
    random = np.random.default_rng(seed)
    return list(random.normal(size=(STEPS, d)) * np.logspace(-4, 2, d))


def steps_of(opt: ServerOpt, sequence: list[np.ndarray]) -> list[np.ndarray]:
    state, taken = opt.init(torch.zeros(len(sequence[0]), dtype=torch.float64)), []
    for g in sequence:
        step, state = opt.update(torch.from_numpy(g), state)
        taken.append(step.numpy())
    return taken


def naive_momentum(sequence, lr, beta, nesterov):
    v, taken = np.zeros_like(sequence[0]), []
    for g in sequence:
        v = beta * v + g
        taken.append(lr * (g + beta * v) if nesterov else lr * v)
    return taken


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


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("lr", "beta"), [(1.0, 0.9), (0.1, 0.5)])
def test_momentum_takes_the_naive_steps(lr, beta, nesterov):
    expected = naive_momentum(gradients(), lr, beta, nesterov)
    taken = steps_of(Momentum(lr=lr, momentum=beta, nesterov=nesterov), gradients())
    np.testing.assert_allclose(taken, expected, rtol=1e-13)


def test_momentum_is_sgd_with_momentum_of_nine_tenths():
    expected = steps_of(SGD(momentum=0.9), gradients())
    np.testing.assert_array_equal(steps_of(Momentum(), gradients()), expected)


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


def torch_steps(make, sequence: list[np.ndarray]) -> list[np.ndarray]:
    w = torch.zeros(len(sequence[0]), dtype=torch.float64, requires_grad=True)
    optimizer, taken = make([w]), []
    for g in sequence:
        before = w.detach().clone()
        w.grad = torch.from_numpy(g.copy())
        optimizer.step()
        taken.append((before - w.detach()).numpy())
    return taken


# Differences of models lose digits: torch's steps are known to 1e-16 of w, not of the step.
TORCH = {"rtol": 1e-9, "atol": 1e-14}


def test_adam_with_bias_correction_takes_the_steps_of_torch():
    opt = Adam(lr=0.1, beta1=0.8, beta2=0.95, tau=1e-2, bias_correction=True)
    expected = torch_steps(
        lambda w: torch.optim.Adam(w, lr=0.1, betas=(0.8, 0.95), eps=1e-2), gradients()
    )
    np.testing.assert_allclose(steps_of(opt, gradients()), expected, **TORCH)


@pytest.mark.parametrize("v0", [0.0, 0.3])
def test_adagrad_takes_the_steps_of_torch(v0):
    options = {"lr": 0.1, "eps": 1e-3, "initial_accumulator_value": v0}
    expected = torch_steps(lambda w: torch.optim.Adagrad(w, **options), gradients())
    np.testing.assert_allclose(
        steps_of(Adagrad(lr=0.1, tau=1e-3, v0=v0), gradients()), expected, **TORCH
    )


def test_the_first_step_of_adam_is_damped_without_bias_correction():
    g, tau = [np.array([2.0])], 1e-3
    plain, corrected = (
        float(steps_of(Adam(lr=1.0, tau=tau, bias_correction=on), g)[0][0]) for on in (False, True)
    )
    assert corrected == pytest.approx(2 / (2 + tau))
    assert plain == pytest.approx(0.1 * 2 / (np.sqrt(0.01 * 4) + tau))


def test_yogi_forgets_a_large_gradient_more_slowly_than_adam():
    sequence = [np.array([10.0])] + 30 * [np.array([0.1])]
    v = {}
    for kind in (Adam, Yogi):
        state = kind().init(torch.zeros(1, dtype=torch.float64))
        for g in sequence:
            _, state = kind().update(torch.from_numpy(g), state)
        v[kind] = float(state.v)
    expected = {Adam: 1.0, Yogi: 1.0}  # (1 - 0.99) * 10^2
    for _ in range(30):
        expected = {kind: rule(expected[kind], 0.01, 0.99) for kind, rule in RULES.items()}
    assert v == pytest.approx(expected) and v[Yogi] > 0.99 > 0.8 > v[Adam]


RULES = {Adam: adam_rule, Yogi: yogi_rule}
ALL = [
    SGD(),
    Momentum(),
    Momentum(nesterov=True),
    Adam(),
    Adam(bias_correction=True, v0=1e-6),
    Yogi(),
    Yogi(v0=1e-6),
    Adagrad(),
    Adagrad(tau_inside=True, v0=0.1, tau=1e-6),
]


@pytest.mark.parametrize("opt", ALL)
def test_zero_gradients_leave_the_model_unchanged(opt):
    assert not np.any(steps_of(opt, 3 * [np.zeros(4)]))


@pytest.mark.parametrize("opt", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
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


OWN_RULE = [wima.FedDyn(alpha=0.2), wima.AdaBest(mu=0.1, beta=0.7), wima.FedACG(lam=0.6, beta=0.3)]
OTHERS = [SGD(lr=0.5), Momentum(), Momentum(lr=0.4, momentum=0.7), Adam(), Yogi(), Adagrad()]
SETTINGS = {"rounds": 6, "clients_per_round": 2, "lr": 0.1, "steps": 3, "engine": "reference"}
random = np.random.default_rng(1)
A, B, N = random.uniform(0.5, 2, (4, 3)), random.normal(size=(4, 3)), (10, 20, 30, 40)


@pytest.mark.parametrize("opt", OTHERS)
@pytest.mark.parametrize("algorithm", OWN_RULE)
def test_an_algorithm_with_its_own_server_rule_refuses_another_optimizer(algorithm, opt):
    name = type(algorithm).__name__
    with pytest.raises(UsageError) as error:
        wima.simulate(quadratics(A, B, N), algorithm, server_opt=opt, **SETTINGS)
    for words in (f"{name} has its own server rule", "lr 1", str(opt), "stack_server"):
        assert words in str(error.value)


@pytest.mark.parametrize("algorithm", OWN_RULE)
def test_it_takes_plain_sgd_given_or_not(algorithm):
    task, given = quadratics(A, B, N), {"server_opt": SGD()}
    one, two = (wima.run(task, algorithm, **more, **SETTINGS).vectors for more in ({}, given))
    assert torch.equal(one["plain"], two["plain"])


def ends(w, cohort, linear, prox, start):
    """Where three full-batch steps of each client of the cohort end."""
    result = {}
    for i in cohort:
        y = start
        for _ in range(3):
            y = y - 0.1 * (A[i] * (y - B[i]) + linear[i] + prox * (y - start))
        result[i] = y
    return result


def naive_target(algorithm):
    """w, cohort, t -> the model that the algorithm's own rule would step to, with its memory."""
    kind, p = type(algorithm), algorithm
    memory, last = np.zeros((4, 3)), np.zeros(4)
    server = {"h": np.zeros(3), "m": np.zeros(3), "mean": np.zeros(3)}

    def target(w, cohort, t):
        weights = {i: N[i] / sum(N[j] for j in cohort) for i in cohort}
        if kind is wima.FedACG:
            ahead = w + p.lam * server["m"]
            y = ends(w, cohort, memory, p.beta, ahead)
            moved = sum(weights[i] * (y[i] - ahead) for i in cohort)
            server["m"] = p.lam * server["m"] + moved
            return w + server["m"]
        prox = p.alpha if kind is wima.FedDyn else 0.0
        y = ends(w, cohort, -memory, prox, w)
        mean = sum(weights[i] * y[i] for i in cohort)
        for i in cohort:
            if kind is wima.FedDyn:
                memory[i] += p.alpha * (w - y[i])
                server["h"] += p.alpha / len(N) * (w - y[i])
            else:
                memory[i] = memory[i] / (t + 1 - last[i]) + p.mu * (w - y[i])
                last[i] = t + 1
        if kind is wima.FedDyn:
            return mean - server["h"] / p.alpha
        before, server["mean"] = server["mean"], mean
        return mean + p.beta * (mean - before)

    return target


@pytest.mark.parametrize("opt", OTHERS)
@pytest.mark.parametrize("algorithm", OWN_RULE)
def test_a_stacked_optimizer_steps_with_the_algorithms_pseudo_gradient(algorithm, opt):
    """The pseudo-gradient is what the own rule would take off w."""
    stacked = {"server_opt": opt, "stack_server": True}
    simulation = wima.simulate(quadratics(A, B, N), algorithm, **stacked, **SETTINGS)
    w, target, seen = np.zeros(3), naive_target(algorithm), []
    for t, record in enumerate(simulation):
        seen.append(w - target(w, record.cohort, t))
        w = w - steps_of(opt, seen)[-1]  # its steps are tested above
        np.testing.assert_allclose(simulation.w, w, rtol=1e-12)
    own = wima.run(quadratics(A, B, N), algorithm, **SETTINGS).vectors["plain"]
    assert not np.allclose(w, own, rtol=1e-3)


@pytest.mark.parametrize("algorithm", [wima.FedAvg(), wima.FedProx(), wima.Scaffold(), wima.Mime()])
def test_other_algorithms_take_any_optimizer(algorithm):
    task = quadratics(A, B, N)
    results = [wima.run(task, algorithm, server_opt=opt, **SETTINGS).vectors for opt in OTHERS]
    finals = {tuple(vectors["plain"].tolist()) for vectors in results}
    assert len(finals) == len(OTHERS) and np.isfinite(list(finals)).all()
