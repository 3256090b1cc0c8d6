from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, State, Visit
from wima.core.errors import check_range
from wima.core.vector import Vector


class FrozenMomentum(NamedTuple):
    m: Vector  # frozen during the round


@dataclass(frozen=True, kw_only=True)
class MimeLite(Algorithm):
    """Clients step with the server's frozen momentum, which follows full gradients at w.

        y <- y - lr * (g_b(y) + momentum * m)
        m <- mean_i of the full gradients at w + momentum * m

    Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning
    (2020), Algorithm 1 in its Lite form.  Scaled as in FedJAX, see `Mime`.
    """

    momentum: float = 0.9
    full_gradient = "own"
    extra_mean = "weighted"

    def __post_init__(self) -> None:
        check_range("MimeLite.momentum", self.momentum, least=0, below=1)

    def init(self, w: Vector) -> FrozenMomentum:
        return FrozenMomentum(torch.zeros_like(w))

    def local(self, w: Vector, server: FrozenMomentum, client: State) -> Local:
        return Local(w, shift=self.momentum * server.m)

    def client_finish(
        self, visit: Visit, server: FrozenMomentum, client: State
    ) -> tuple[Vector | None, State]:
        return visit.gradient, client

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: FrozenMomentum, fraction: float
    ) -> tuple[Vector, FrozenMomentum]:
        return delta, FrozenMomentum(extra + self.momentum * server.m)
