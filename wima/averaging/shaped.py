"""The last W models, with weights that correspond to another decay of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from wima.averaging.base import Averager, AverageState, Past
from wima.core.vector import Vector
from wima.storage.ring import Ring


@dataclass(frozen=True)
class ShapedWindow(Averager):
    """The weighted mean of the last W models; see `core.shapes` for the weights.

    There is no running sum: the state is the ring of past models, and every value takes a pass over
    it, in O(W d).
    """

    window: int
    shape: str

    @property
    def history(self) -> int:
        return self.window

    def init(self, w: Vector) -> AverageState:
        return w.clone()  # until the ring has a model

    def update(self, state: AverageState, w: Vector, past: Past) -> AverageState:
        return past  # which also holds w when the value is computed

    def value(self, state: AverageState) -> Vector:
        if isinstance(state, Ring):
            return state.mean(min(state.count, self.window), self.shape)
        return cast(Vector, state)
