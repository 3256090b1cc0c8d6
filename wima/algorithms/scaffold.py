from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from wima.algorithms.base import Algorithm, Extra, FullGradient, Local, Visit
from wima.core.errors import check_one_of
from wima.core.vector import Vector


class Control(NamedTuple):
    c: Vector


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """Clients correct their gradients by the difference of two control variates.

        y   <- y - lr * (g_i(y) - c_i + c)
        c_i <- option I: full gradient of client i at w
               option II: c_i - c + (w - y)/(K lr), the mean of its gradients g_i along the way
        c   <- c + 1/M * sum over the cohort of the changes of c_i    (M: all clients)

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML
    2020), Algorithm 1.  Option II uses `path_gradient`, the mean of the mini-batch gradients that
    the client computed on its way from w to y, before any correction.  It equals the formula above
    for plain SGD, and remains correct with clipping and momentum.

    Examples:
        >>> import torch, wima
        >>> scaffold, w = wima.Scaffold(), torch.zeros(1)
        >>> server, client = scaffold.init(w), scaffold.client_init(w)
        >>> server = server._replace(c=torch.tensor([0.5]))
        >>> scaffold.local(w, server, client).shift  # c - c_i
        tensor([0.5000])
    """

    option: Literal["I", "II"] = "II"

    def __post_init__(self) -> None:
        check_one_of("Scaffold.option", self.option, ("I", "II"))

    @property
    def full_gradient(self) -> FullGradient:
        return "own" if self.option == "I" else "none"

    @property
    def path_gradient(self) -> bool:
        return self.option == "II"

    def init(self, w: Vector) -> Control:
        return Control(torch.zeros_like(w))

    client_init = init

    def local(self, w: Vector, server: Control, client: Control) -> Local:
        return Local(w, shift=server.c - client.c)

    def client_finish(
        self, visit: Visit, server: Control, client: Control
    ) -> tuple[Vector, Control]:
        c_new = visit.gradient if self.option == "I" else visit.path_gradient
        return c_new - client.c, Control(c_new)

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: Control, fraction: float
    ) -> tuple[Vector, Control]:
        return delta, Control(server.c + fraction * extra)
