"""The server's step, a separate axis: w <- w - ServerOpt(pseudo_gradient)  (Eq. 3 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from wima.checks import check_rate, is_number
from wima.errors import UsageError, check
from wima.vector import Vector

OptState: TypeAlias = Any


class ServerOpt(Protocol):
    """An optimizer over one vector; `update` is pure."""

    def init(self, w: Vector) -> OptState: ...

    def update(self, gradient: Vector, state: OptState) -> tuple[Vector, OptState]: ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with heavy-ball or Nesterov momentum.

        v <- momentum * v + gradient;  step = lr * v,  Nesterov: lr * (gradient + momentum * v)

    lr = 1 without momentum is FedAvg, momentum = 0.9 is FedAvgM (Hsu et al. 2019).  No
    dampening, as in FedJAX and torch; Flower's FedAvgM is the Nesterov form.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_rate("SGD.lr", self.lr)
        check(
            is_number(self.momentum) and 0 <= self.momentum < 1,
            f"SGD.momentum must be in [0, 1), got {self.momentum!r}.",
        )
        if self.nesterov and self.momentum == 0:
            raise UsageError("SGD.nesterov needs a momentum in (0, 1), got momentum 0.")

    def init(self, w: Vector) -> OptState:
        return (torch.zeros_like(w),) if self.momentum else ()

    def update(self, gradient: Vector, state: OptState) -> tuple[Vector, OptState]:
        if not self.momentum:
            return self.lr * gradient, state
        (v,) = state
        v = self.momentum * v + gradient
        return self.lr * (gradient + self.momentum * v if self.nesterov else v), (v,)


BY_NAME: dict[str, type[SGD]] = {"sgd": SGD}
