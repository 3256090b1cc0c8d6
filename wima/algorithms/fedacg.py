from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, State
from wima.core.errors import check_range
from wima.core.vector import Vector


class Motion(NamedTuple):
    m: Vector  # direction of motion: new minus old


@dataclass(frozen=True, kw_only=True)
class FedACG(Algorithm):
    """Clients start at a look-ahead model and are kept close to it.

        s <- w + lam * m;   y starts at s
        y <- y - lr * (g_i(y) + beta * (y - s))
        m <- lam * m + mean_i (y_i - s)
        w <- w + m                                (= mean_i y_i)

    Kim et al., Communication-Efficient Federated Learning with Accelerated Client Gradient (CVPR
    2024), Algorithm 1.  The authors' code omits the 1/2 of the proximal term: its beta of 1e-3 is
    2e-3 here.
    """

    lam: float = 0.85
    beta: float = 0.01
    own_server_rule = True

    def __post_init__(self) -> None:
        check_range("FedACG.lam", self.lam, least=0, below=1)
        check_range("FedACG.beta", self.beta, least=0)

    def init(self, w: Vector) -> Motion:
        return Motion(torch.zeros_like(w))

    def local(self, w: Vector, server: Motion, client: State) -> Local:
        return Local(w + self.lam * server.m, prox=self.beta)

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: Motion, fraction: float
    ) -> tuple[Vector, Motion]:
        m = self.lam * server.m - delta
        return -m, Motion(m)
