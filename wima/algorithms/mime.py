from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, Local, State
from wima.core.errors import check_range
from wima.core.vector import Vector


class Statistics(NamedTuple):
    m: Vector  # momentum, frozen during the round
    c: Vector  # the cohort's mean full gradient at w


@dataclass(frozen=True, kw_only=True)
class Mime(Algorithm):
    """Clients take variance-reduced steps with the server's frozen momentum.

        c <- mean_i of the full gradients at w, before the clients train
        y <- y - lr * (g_b(y) - g_b(w) + c + momentum * m),    one mini-batch b for both
        m <- c + momentum * m

    Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning
    (2020), Algorithm 1.  momentum = 0 is MIME SGD.  Scaled as in FedJAX; the paper multiplies c by
    (1 - momentum), which needs lr / (1 - momentum) for the same steps.

    Examples:
        >>> import torch, wima
        >>> mime, w = wima.Mime(momentum=0.5), torch.zeros(1)
        >>> server = mime.observe(torch.tensor([2.0]), mime.init(w))  # c
        >>> _, server = mime.server_update(w, delta=w, extra=None, server=server, fraction=1.0)
        >>> mime.local(w, server, client=()).shift  # c + momentum * m, with m = c
        tensor([3.])
    """

    momentum: float = 0.9
    full_gradient = "cohort"

    def __post_init__(self) -> None:
        check_range("Mime.momentum", self.momentum, least=0, below=1)

    def init(self, w: Vector) -> Statistics:
        return Statistics(torch.zeros_like(w), torch.zeros_like(w))

    def observe(self, gradient: Vector, server: Statistics) -> Statistics:
        return server._replace(c=gradient)

    def local(self, w: Vector, server: Statistics, client: State) -> Local:
        return Local(w, shift=server.c + self.momentum * server.m, anchored=True)

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: Statistics, fraction: float
    ) -> tuple[Vector, Statistics]:
        return delta, server._replace(m=server.c + self.momentum * server.m)
