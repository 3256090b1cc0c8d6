"""The server's step, a separate axis: w <- w - ServerOpt(pseudo_gradient)  (Eq. 3 of the paper).

Adam, Yogi and Adagrad as in Reddi et al., Adaptive Federated Optimization (ICLR 2021), Algorithm 2:
no bias correction, tau outside the root.  Fields select the variants of other libraries.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from wima.core.errors import UsageError, check_range, check_rate, check_switch
from wima.core.vector import Vector

OptState: TypeAlias = Any


class ServerOpt(Protocol):
    """An optimizer over one vector; `update` is pure."""

    def init(self, w: Vector) -> OptState:
        """The state before the first step."""
        ...

    def update(self, gradient: Vector, state: OptState) -> tuple[Vector, OptState]:
        """The step to subtract from w, and the new state."""
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Gradient descent with heavy-ball or Nesterov momentum.

        v <- momentum * v + gradient;  step = lr * v,  Nesterov: lr * (gradient + momentum * v)

    lr = 1 without momentum is FedAvg, momentum = 0.9 is FedAvgM (Hsu et al. 2019).  No
    dampening, as in FedJAX and torch; Flower's FedAvgM baseline is the Nesterov form.

    Examples:
        >>> import torch, wima
        >>> optimizer, w = wima.SGD(lr=0.5, momentum=0.5), torch.zeros(1)
        >>> step, state = optimizer.update(torch.ones(1), optimizer.init(w))
        >>> step, state = optimizer.update(torch.ones(1), state)
        >>> step  # lr * (momentum * 1 + 1)
        tensor([0.7500])
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_rate(f"{type(self).__name__}.lr", self.lr)
        check_range(f"{type(self).__name__}.momentum", self.momentum, least=0, below=1)
        check_switch(f"{type(self).__name__}.nesterov", self.nesterov)
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


@dataclass(frozen=True, kw_only=True)
class Momentum(SGD):
    """SGD with a default momentum of 0.9: FedAvgM."""

    momentum: float = 0.9


class Moments(NamedTuple):
    m: Vector
    v: Vector
    k: int  # steps taken


@dataclass(frozen=True, kw_only=True)
class Adam:
    """FedAdam: v <- beta2 * v + (1 - beta2) * g^2.

        m <- beta1 * m + (1 - beta1) * g;  step = lr * m / (sqrt(v) + tau)

    Examples:
        >>> import torch, wima
        >>> optimizer = wima.Adam(lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)
        >>> step, state = optimizer.update(torch.ones(1), optimizer.init(torch.zeros(1)))
        >>> step  # 0.1 * 0.5 / (sqrt(0.25) + 0.5)
        tensor([0.0500])
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v0: float = 0.0  # where v starts; tau**2 in Reddi et al.
    bias_correction: bool = False  # as in Kingma and Ba, torch and optax

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_rate(f"{kind}.lr", self.lr)
        check_range(f"{kind}.beta1", self.beta1, least=0, below=1)
        check_range(f"{kind}.beta2", self.beta2, least=0, below=1)
        check_range(f"{kind}.tau", self.tau, above=0)
        check_range(f"{kind}.v0", self.v0, least=0)
        check_switch(f"{kind}.bias_correction", self.bias_correction)

    def init(self, w: Vector) -> Moments:
        return Moments(torch.zeros_like(w), torch.full_like(w, self.v0), 0)

    def second_moment(self, v: Vector, g: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * g**2

    def update(self, gradient: Vector, state: Moments) -> tuple[Vector, Moments]:
        m = self.beta1 * state.m + (1 - self.beta1) * gradient
        v = self.second_moment(state.v, gradient)
        k = state.k + 1
        m_hat, v_hat = m, v
        if self.bias_correction:
            m_hat, v_hat = m / (1 - self.beta1**k), v / (1 - self.beta2**k)
        return self.lr * m_hat / (v_hat.sqrt() + self.tau), Moments(m, v, k)


@dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """FedYogi: Adam with v <- v - (1 - beta2) * g^2 * sign(v - g^2)."""

    def second_moment(self, v: Vector, g: Vector) -> Vector:
        return v - (1 - self.beta2) * g**2 * torch.sign(v - g**2)


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """FedAdagrad: v <- v + g^2, step = lr * g / (sqrt(v) + tau).

    tau_inside: step = lr * g / sqrt(v + tau), which with v0 = 0.1 and tau = 1e-6 is optax's form.
    """

    lr: float = 0.1
    tau: float = 1e-3
    v0: float = 0.0
    tau_inside: bool = False

    def __post_init__(self) -> None:
        check_rate("Adagrad.lr", self.lr)
        check_range("Adagrad.tau", self.tau, above=0)
        check_range("Adagrad.v0", self.v0, least=0)
        check_switch("Adagrad.tau_inside", self.tau_inside)

    def init(self, w: Vector) -> OptState:
        return (torch.full_like(w, self.v0),)

    def update(self, gradient: Vector, state: OptState) -> tuple[Vector, OptState]:
        (v,) = state
        v = v + gradient**2
        root = (v + self.tau).sqrt() if self.tau_inside else v.sqrt() + self.tau
        return self.lr * gradient / root, (v,)


BY_NAME: dict[str, type[Any]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}
