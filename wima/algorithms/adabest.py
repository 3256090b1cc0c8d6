from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, Visit
from wima.core.errors import check_range, check_switch
from wima.core.vector import Vector


class LastMean(NamedTuple):
    mean: Vector  # the last cohort's mean model


class Bias(NamedTuple):
    h: Vector
    last: int  # round of the last visit, counted from 1; 0 before the first


@dataclass(frozen=True, kw_only=True)
class AdaBest(Algorithm):
    """Clients subtract an estimate of their bias; the server extrapolates from its means.

        y   <- y - lr * (g_i(y) - h_i)
        h_i <- h_i / (rounds since the last visit) + mu * (w - y)
        w   <- mean + beta * (mean - mean of the round before),    mean = mean_i y_i

    Keep mu * lr * steps below 1 for every client: a visit multiplies h_i by about 1 / (rounds since
    the last visit) - mu * lr * steps, so h_i would grow without bound for clients with many steps.

    Varno et al., AdaBest: Minimizing Client Drift in FL (ECCV 2022), Algorithm 1.
    """

    mu: float = 0.02
    beta: float = 0.8
    serve_mean: bool = False  # evaluate the cohort's mean model instead of w
    own_server_rule = True

    def __post_init__(self) -> None:
        check_range("AdaBest.mu", self.mu, least=0)
        check_range("AdaBest.beta", self.beta, least=0, below=1)
        check_switch("AdaBest.serve_mean", self.serve_mean)

    def init(self, w: Vector) -> LastMean:
        return LastMean(w)

    def client_init(self, w: Vector) -> Bias:
        return Bias(torch.zeros_like(w), 0)

    def local(self, w: Vector, server: LastMean, client: Bias) -> Local:
        return Local(w, shift=-client.h)

    def client_finish(self, visit: Visit, server: LastMean, client: Bias) -> tuple[None, Bias]:
        now = visit.t + 1
        return None, Bias(client.h / (now - client.last) + self.mu * visit.delta, now)

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: LastMean, fraction: float
    ) -> tuple[Vector, LastMean]:
        mean = w - delta
        return delta + self.beta * (server.mean - mean), LastMean(mean)

    def served(self, w: Vector, server: LastMean) -> Vector:
        return server.mean if self.serve_mean else w
