"""Every method transliterated from its paper: slow, naive, and independent of the package.

Each function plays all rounds of a `Problem` and returns the global models [w^1, ..., w^T].
Only operators touch the models and nothing is changed in place, so NumPy arrays and torch
vectors both work. Letters follow the papers; a docstring says where a scaling does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """What the pseudo-codes take as given. Weight decay, if any, is inside the gradients."""

    w0: Any  # the initial model
    sizes: Sequence[int]  # N_i of all M clients
    cohorts: Sequence[Sequence[int]]  # S^t for t = 0..T-1
    gradient: Callable[[Any, int, int, int], Any]  # (y, i, t, k): k-th mini-batch of round t
    full_gradient: Callable[[Any, int, int], Any]  # (w, i, t): mean over all of client i's data
    steps: Callable[[int], int]  # K_i
    lr: Callable[[int], float]  # client learning rate of round t
    weighting: str = "examples"  # or "uniform"

    def weights(self, cohort: Sequence[int]) -> dict[int, float]:
        """p_i over a cohort: N_i / sum N_j, or 1 / |S|."""
        counts = {"examples": self.sizes, "uniform": [1 for _ in self.sizes]}[self.weighting]
        return {i: int(counts[i]) / sum(int(counts[j]) for j in cohort) for i in cohort}


def _fedopt_delta(problem: Problem, x: Any, t: int) -> Any:
    """Delta_t = sum p_i (x_{i,K} - x_t) after plain local SGD; Reddi et al., Algorithm 1."""
    p, delta = problem.weights(problem.cohorts[t]), 0.0
    for i in problem.cohorts[t]:
        y = x
        for k in range(problem.steps(i)):
            y = y - problem.lr(t) * problem.gradient(y, i, t, k)
        delta = delta + p[i] * (y - x)
    return delta


def fedavg(problem: Problem, *, server_lr: float = 1.0) -> list:
    """FederatedAveraging: McMahan et al., AISTATS 2017, Algorithm 1, with a server rate."""
    w, models = problem.w0, []
    for t in range(len(problem.cohorts)):
        w = w + server_lr * _fedopt_delta(problem, w, t)
        models.append(w)
    return models


def fedavgm(problem: Problem, *, beta: float, server_lr: float, nesterov: bool = False) -> list:
    """FedAvgM: Hsu, Qi, Brown, arXiv:1909.06335: v <- beta v + dw; w <- w - server_lr v."""
    w, v, models = problem.w0, 0.0 * problem.w0, []
    for t in range(len(problem.cohorts)):
        dw = -_fedopt_delta(problem, w, t)
        v = beta * v + dw
        w = w - server_lr * (dw + beta * v if nesterov else v)
        models.append(w)
    return models


def fedprox(problem: Problem, *, mu: float, server_lr: float = 1.0) -> list:
    """FedProx: Li et al., MLSys 2020: the local loss is F_i(y) + mu/2 |y - w^t|^2."""
    w, models = problem.w0, []
    for t, cohort in enumerate(problem.cohorts):
        p, average = problem.weights(cohort), 0.0
        for i in cohort:
            y = w
            for k in range(problem.steps(i)):
                y = y - problem.lr(t) * (problem.gradient(y, i, t, k) + mu * (y - w))
            average = average + p[i] * y
        w = w - server_lr * (w - average)
        models.append(w)
    return models


def scaffold(
    problem: Problem, *, option: str = "II", server_lr: float = 1.0, trace: list | None = None
) -> list:
    """SCAFFOLD: Karimireddy et al., ICML 2020, Algorithm 1; its (i) and (ii) are I and II here.

    The model average uses p_i, the control variate 1/M. `trace` gets {"c", "c_i"} every round.
    """
    x, c, models = problem.w0, 0.0 * problem.w0, []
    c_i = [0.0 * problem.w0 for _ in problem.sizes]
    for t, cohort in enumerate(problem.cohorts):
        p, dy, dc = problem.weights(cohort), {}, {}
        for i in cohort:
            y = x
            for k in range(problem.steps(i)):
                y = y - problem.lr(t) * (problem.gradient(y, i, t, k) - c_i[i] + c)
            if option == "I":
                c_plus = problem.full_gradient(x, i, t)
            elif option == "II":
                c_plus = c_i[i] - c + (x - y) / (problem.steps(i) * problem.lr(t))
            dy[i], dc[i] = y - x, c_plus - c_i[i]
            c_i[i] = c_plus
        x = x + server_lr * sum(p[i] * dy[i] for i in cohort)
        c = c + sum(dc[i] for i in cohort) / len(problem.sizes)
        models.append(x)
        if trace is not None:
            trace.append({"c": c, "c_i": list(c_i)})
    return models


def feddyn(problem: Problem, *, alpha: float, serve: str = "cloud", trace: Any = None) -> list:
    """FedDyn: Acar et al., ICLR 2021, Algorithm 1, theta the cloud model, lambda_i = grad L_i.

    The mean uses p_i, h 1/M. serve="mean" returns the means; `trace` gets {"h", "lambda_i"}.
    """
    theta, h, models = problem.w0, 0.0 * problem.w0, []
    lambda_i = [0.0 * problem.w0 for _ in problem.sizes]
    for t, cohort in enumerate(problem.cohorts):
        p, theta_i = problem.weights(cohort), {}
        for i in cohort:
            y = theta
            for k in range(problem.steps(i)):
                g = problem.gradient(y, i, t, k) - lambda_i[i] + alpha * (y - theta)
                y = y - problem.lr(t) * g
            theta_i[i] = y
            lambda_i[i] = lambda_i[i] - alpha * (y - theta)
        h = h - alpha * sum(theta_i[i] - theta for i in cohort) / len(problem.sizes)
        mean = sum(p[i] * theta_i[i] for i in cohort)
        theta = mean - h / alpha
        models.append({"cloud": theta, "mean": mean}[serve])
        if trace is not None:
            trace.append({"h": h, "lambda_i": list(lambda_i)})
    return models


def adabest(problem: Problem, *, mu: float, beta: float, serve: str = "cloud") -> list:
    """AdaBest: Varno et al., ECCV 2022; rounds from 1, the mean with p_i, `serve` as above."""
    cloud, mean_before, models = problem.w0, problem.w0, []
    h_i = [0.0 * problem.w0 for _ in problem.sizes]
    last = [0 for _ in problem.sizes]
    for t, cohort in enumerate(problem.cohorts, start=1):
        p, mean = problem.weights(cohort), 0.0
        for i in cohort:
            y = cloud
            for k in range(problem.steps(i)):
                y = y - problem.lr(t - 1) * (problem.gradient(y, i, t - 1, k) - h_i[i])
            h_i[i] = h_i[i] / (t - last[i]) + mu * (cloud - y)
            last[i] = t
            mean = mean + p[i] * y
        h = beta * (mean_before - mean)
        cloud, mean_before = mean - h, mean
        models.append({"cloud": cloud, "mean": mean}[serve])
    return models


def fedcm(problem: Problem, *, alpha: float, server_lr: float = 1.0) -> list:
    """FedCM: Xu et al., arXiv:2106.10874; d is their Delta_t, every client with its own K_i."""
    x, d, models = problem.w0, 0.0 * problem.w0, []
    for t, cohort in enumerate(problem.cohorts):
        p, delta_i = problem.weights(cohort), {}
        for i in cohort:
            y = x
            for k in range(problem.steps(i)):
                y = y - problem.lr(t) * (alpha * problem.gradient(y, i, t, k) + (1 - alpha) * d)
            delta_i[i] = y - x
        d = sum(-p[i] * delta_i[i] / (problem.lr(t) * problem.steps(i)) for i in cohort)
        x = x + server_lr * sum(p[i] * delta_i[i] for i in cohort)
        models.append(x)
    return models


def fedacg(problem: Problem, *, lam: float, beta: float) -> list:
    """FedACG: Kim, Kim, Han, CVPR 2024; clients start at, and stay near, w^t + lam m^t."""
    w, m, models = problem.w0, 0.0 * problem.w0, []
    for t, cohort in enumerate(problem.cohorts):
        p, ahead, delta = problem.weights(cohort), w + lam * m, 0.0
        for i in cohort:
            y = ahead
            for k in range(problem.steps(i)):
                y = y - problem.lr(t) * (problem.gradient(y, i, t, k) + beta * (y - ahead))
            delta = delta + p[i] * (y - ahead)
        m = lam * m + delta
        w = w + m
        models.append(w)
    return models


def mime(problem: Problem, *, beta: float = 0.0, server_lr: float, lite: bool = False) -> list:
    """Mime with SGD(m): Karimireddy et al., NeurIPS 2021, Algorithm 1, which holds MimeLite too.

    Momentum without the paper's (1 - beta), as FedJAX: the paper's rate is lr / (1 - beta).
    """
    x, s, models = problem.w0, 0.0 * problem.w0, []
    for t, cohort in enumerate(problem.cohorts):
        p, average = problem.weights(cohort), 0.0
        c = sum(p[i] * problem.full_gradient(x, i, t) for i in cohort)
        for i in cohort:
            y = x
            for k in range(problem.steps(i)):
                shift = 0.0 if lite else c - problem.gradient(x, i, t, k)
                y = y - problem.lr(t) * (problem.gradient(y, i, t, k) + shift + beta * s)
            average = average + p[i] * y
        s = c + beta * s
        x = x - server_lr * (x - average)
        models.append(x)
    return models


def mimelite(problem: Problem, *, beta: float, server_lr: float) -> list:
    """MimeLite with SGDm: `mime` without the correction of the local gradients."""
    return mime(problem, beta=beta, server_lr=server_lr, lite=True)


def _reddi(
    problem: Problem,
    rule: Callable[[Any, Any, float], Any],  # (v, Delta^2, beta2) -> v
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    server_lr: float = 1.0,
    v0: float = 0.0,
    bias_correction: bool = False,
) -> list:
    """Reddi et al., ICLR 2021, Algorithm 2; bias correction is Keras's and optax's addition."""
    x, m, v, models = problem.w0, 0.0 * problem.w0, v0 + 0.0 * problem.w0, []
    for t in range(len(problem.cohorts)):
        delta = _fedopt_delta(problem, x, t)
        m = beta1 * m + (1 - beta1) * delta
        v = rule(v, delta * delta, beta2)
        m_hat = m / (1 - beta1 ** (t + 1)) if bias_correction else m
        v_hat = v / (1 - beta2 ** (t + 1)) if bias_correction else v
        x = x + server_lr * m_hat / (v_hat**0.5 + tau)
        models.append(x)
    return models


def fedadagrad(problem: Problem, *, beta1: float = 0.0, **kw: float) -> list:
    """FedAdagrad: v <- v + Delta^2. Keywords: tau, server_lr, v0."""
    return _reddi(problem, lambda v, d2, _: v + d2, beta1=beta1, **kw)


def fedadam(problem: Problem, **kw: Any) -> list:
    """FedAdam: v <- beta2 v + (1 - beta2) Delta^2. Keywords: those of `_reddi`."""
    return _reddi(problem, lambda v, d2, beta2: beta2 * v + (1 - beta2) * d2, **kw)


def fedyogi(problem: Problem, **kw: Any) -> list:
    """FedYogi: v <- v - (1 - beta2) Delta^2 sign(v - Delta^2). Keywords: those of `_reddi`."""

    def rule(v: Any, d2: Any, beta2: float) -> Any:
        return v - (1 - beta2) * d2 * (1.0 * (v > d2) - 1.0 * (v < d2))

    return _reddi(problem, rule, **kw)


def wima(models: Sequence, window: int) -> list:
    """WIMA: Caldarola et al., ICCVW 2023, Eq. 4; before W models exist, the mean of all."""
    return [sum(models[max(0, t - window) : t]) / min(t, window) for t in range(1, len(models) + 1)]


def swa(models: Sequence, start: int, cycle: int, phase: str = "fedsam", w0: Any = None) -> list:
    """SWA: Izmailov et al., UAI 2018, as in Caldarola et al., ECCV 2022; None before `start`.

    "fedsam" collects one round after "izmailov", from i = start + c; before, w^start (or w0).
    """
    shift = {"fedsam": 0, "izmailov": 1}[phase]
    average, n, served = None, 0, []
    for i, w in enumerate(models):  # w is w^{i+1}
        if i == start:
            average = models[start - 1] if start > 0 else w0
        if i + shift > start and (i + shift - start) % cycle == 0:
            average, n = (n * average + w) / (n + 1), n + 1
        served.append(average)
    return served


def swa_rate(i: int, lr: float, start: int, cycle: int, phase: str = "fedsam") -> float:
    """The client learning rate of round i: linear from lr to lr / 100 inside every cycle."""
    if i < start or cycle == 1:
        return lr
    a = ((i - {"fedsam": 0, "izmailov": start}[phase]) % cycle + 1) / cycle
    return (1 - a) * lr + a * (0.01 * lr)


def ema(models: Sequence, decay: float, start: str = "first", w0: Any = None) -> list:
    """e <- d e + (1 - d) w^k, from e = w^1 ("first"), e = w0 ("w0"), or 0 and over 1 - d^k."""
    e, served = {"first": models[0], "w0": w0, "zero-debiased": 0.0 * models[0]}[start], []
    for k, w in enumerate(models, start=1):
        e = decay * e + (1 - decay) * w
        served.append(e / (1 - decay**k) if start == "zero-debiased" else e)
    return served


def lawa(models: Sequence, k: int, every: int) -> list:
    """LAWA: Kaddour, arXiv:2209.14981: the mean of the last k of w^c, w^2c, ...; None before."""
    served, kept = [], []
    for t, w in enumerate(models, start=1):
        if t % every == 0:
            kept = [*kept, w][-k:]
        served.append(sum(kept) / len(kept) if kept else None)
    return served
