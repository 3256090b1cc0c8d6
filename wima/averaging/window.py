"""WIMA: the mean of the last W global models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.averaging.base import Averager, Past
from wima.core.checks import check_count
from wima.core.vector import Vector


class WindowSum(NamedTuple):
    total: Vector  # float64: a float32 sum drifts by 1e-6 in 10,000 rounds
    seen: int  # models so far
    dtype: torch.dtype  # of the models


@dataclass(frozen=True)
class WIMA(Averager):
    """The mean of the last W global models.

        w_WIMA = (1/W) * sum of the last W models    (Eq. 4 of the paper)

    Eq. 4 starts when W models are there; before that, the mean of what there is, so that curves
    begin at round 1.  Equal to W server steps from the model before the window, step j scaled by
    (W - j)/W for j = 0 ... W - 1: a falling learning rate (Eq. 6 and 7).

    One running sum: an update costs O(d), whatever W.
    """

    window: int = 100
    part: str = "all"

    def __post_init__(self) -> None:
        check_count("WIMA.window", self.window)
        super().__post_init__()

    def _label(self) -> str:
        return f"wima{self.window}"

    @property
    def history(self) -> int:
        return self.window

    def init(self, w: Vector) -> WindowSum:
        return WindowSum(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: WindowSum, w: Vector, past: Past) -> WindowSum:
        if state.seen == 0:
            state.total.zero_()
        state.total.add_(past.as_stored(w))  # what will be subtracted, to the bit
        if state.seen >= self.window:
            state.total.sub_(past.ago(self.window))
        return state._replace(seen=state.seen + 1)

    def value(self, state: WindowSum) -> Vector:
        return (state.total / max(1, min(state.seen, self.window))).to(state.dtype)
