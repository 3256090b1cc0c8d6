"""EMA: the exponential moving average of the models, with a fixed or a growing memory."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch

from wima.averaging.base import Averager
from wima.core.errors import check_one_of, check_range
from wima.core.vector import Vector
from wima.storage.ring import Ring


class EMAState(NamedTuple):
    mean: Vector  # float64
    seen: int
    dtype: torch.dtype


@dataclass(frozen=True)
class EMA(Averager):
    """e <- decay * e + (1 - decay) * w.

    begin: "first" starts at the first model, "initial" at the model before round 1, "debiased" at 0
    and divides by 1 - decay^k after k models.
    """

    decay: float = 0.98
    begin: Literal["first", "initial", "debiased"] = "first"
    part: str = "all"

    def __post_init__(self) -> None:
        check_range("EMA.decay", self.decay, least=0, below=1)
        check_one_of("EMA.begin", self.begin, ("first", "initial", "debiased"))
        super().__post_init__()

    def _label(self) -> str:
        return f"ema{self.decay}" + ("" if self.begin == EMA.begin else f"-{self.begin}")

    def init(self, w: Vector) -> EMAState:
        return EMAState(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: EMAState, w: Vector, past: Ring) -> EMAState:
        if state.seen == 0 and self.begin == "first":
            state.mean.copy_(w)
        else:
            if state.seen == 0 and self.begin == "debiased":
                state.mean.zero_()
            state.mean.mul_(self.decay).add_(w, alpha=1 - self.decay)
        return state._replace(seen=state.seen + 1)

    def value(self, state: EMAState) -> Vector:
        weight = 1 - self.decay**state.seen if self.begin == "debiased" and state.seen else 1.0
        return (state.mean / weight).to(state.dtype)


@dataclass(frozen=True)
class PowerEMA(Averager):
    """e <- b * e + (1 - b) * w after model t, with b = (1 - 1/t)^(gamma + 1).

    The weight of a model is proportional to t^gamma: the memory grows with the run.  sigma is the
    standard deviation of this profile, as a share of the run, and determines gamma:

        sigma^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3))

    Karras et al., Analyzing and Improving the Training Dynamics of Diffusion Models (CVPR 2024).
    """

    sigma: float = 0.1
    part: str = "all"

    def __post_init__(self) -> None:
        check_range("PowerEMA.sigma", self.sigma, above=0, below=0.288)  # equal weights have 0.288
        super().__post_init__()

    def _label(self) -> str:
        return f"power-ema{self.sigma}"

    @cached_property
    def gamma(self) -> float:
        """The largest root of the equation above."""
        v = self.sigma**-2
        return float(max(np.roots([1, 7, 16 - v, 12 - v]).real))

    def init(self, w: Vector) -> EMAState:
        return EMAState(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: EMAState, w: Vector, past: Ring) -> EMAState:
        seen = state.seen + 1
        keep = (1 - 1 / seen) ** (self.gamma + 1)
        state.mean.mul_(keep).add_(w, alpha=1 - keep)
        return state._replace(seen=seen)

    def value(self, state: EMAState) -> Vector:
        return state.mean.to(state.dtype, copy=True)
