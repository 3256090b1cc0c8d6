from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, Visit
from wima.core.errors import check_range, check_switch
from wima.core.vector import Vector


class Dyn(NamedTuple):
    h: Vector  # minus the sum of all drifts, times alpha/M
    mean: Vector  # the last cohort's mean model


class Dual(NamedTuple):
    lam: Vector  # the client's estimate of its gradient


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """Linear and quadratic terms align each client's optimum with the global one.

        y     <- y - lr * (g_i(y) - lam_i + alpha * (y - w))
        lam_i <- lam_i - alpha * (y - w)
        h     <- h - alpha/M * sum over the cohort of (y_i - w)
        w     <- mean_i y_i - h/alpha

    Acar et al., Federated Learning Based on Dynamic Regularization (ICLR 2021), Algorithm 1.  It
    does not become FedAvg as alpha -> 0.  Its authors evaluate means of models, never w.

    Examples:
        >>> import torch, wima
        >>> feddyn, w = wima.FedDyn(alpha=0.5), torch.zeros(1)
        >>> visit = wima.Visit(start=w, end=torch.tensor([2.0]), steps=1, lr=0.1, t=0)
        >>> _, client = feddyn.client_finish(visit, feddyn.init(w), feddyn.client_init(w))
        >>> client.lam  # 0 - alpha * (y - w)
        tensor([-1.])
    """

    alpha: float = 0.01
    serve_mean: bool = False  # evaluate the cohort's mean model instead of w
    own_server_rule = True

    def __post_init__(self) -> None:
        check_range("FedDyn.alpha", self.alpha, above=0)
        check_switch("FedDyn.serve_mean", self.serve_mean)

    def init(self, w: Vector) -> Dyn:
        return Dyn(h=torch.zeros_like(w), mean=w)

    def client_init(self, w: Vector) -> Dual:
        return Dual(torch.zeros_like(w))

    def local(self, w: Vector, server: Dyn, client: Dual) -> Local:
        return Local(w, prox=self.alpha, shift=-client.lam)

    def client_finish(self, visit: Visit, server: Dyn, client: Dual) -> tuple[Vector, Dual]:
        return visit.delta, Dual(client.lam + self.alpha * visit.delta)

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: Dyn, fraction: float
    ) -> tuple[Vector, Dyn]:
        h = server.h + self.alpha * fraction * extra
        return delta + h / self.alpha, Dyn(h, mean=w - delta)

    def served(self, w: Vector, server: Dyn) -> Vector:
        return server.mean if self.serve_mean else w
