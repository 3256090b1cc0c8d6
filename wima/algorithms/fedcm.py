from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, State, Visit
from wima.core.errors import check_range
from wima.core.vector import Vector


class Direction(NamedTuple):
    D: Vector  # the last round's mean gradient


@dataclass(frozen=True, kw_only=True)
class FedCM(Algorithm):
    """Clients mix their gradient with the last round's global direction.

        y <- y - lr * (alpha * g_i(y) + (1 - alpha) * D)
        D <- mean_i (w - y_i)/(K_i lr)

    Xu et al., FedCM: Federated Learning with Client-level Momentum (2021), Algorithm 2.  alpha is
    the weight of the gradient: 0.1 means a momentum of 0.9.  Weight decay is part of the gradient.
    """

    alpha: float = 0.1
    extra_mean = "weighted"

    def __post_init__(self) -> None:
        check_range("FedCM.alpha", self.alpha, above=0, most=1)

    def init(self, w: Vector) -> Direction:
        return Direction(torch.zeros_like(w))

    def local(self, w: Vector, server: Direction, client: State) -> Local:
        return Local(w, scale=self.alpha, shift=(1 - self.alpha) * server.D)

    def client_finish(self, visit: Visit, server: Direction, client: State) -> tuple[Vector, State]:
        return visit.delta / (visit.steps * visit.lr), client

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: Direction, fraction: float
    ) -> tuple[Vector, Direction]:
        return delta, Direction(extra)
