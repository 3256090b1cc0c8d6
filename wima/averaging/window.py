"""WIMA: the mean of the last W global models."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from wima.averaging.base import Averager, AverageState, Past
from wima.averaging.buckets import Buckets
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

    With buckets = k, it keeps about k log2(W/k) sums (`Buckets`) in place of the last W models.
    The mean is then over the longest window there is of at most W models: once W models are there,
    between (1 - 1/k) W and W.
    """

    window: int = 100
    part: str = "all"
    buckets: int | None = None  # of each size, at least 2

    def __post_init__(self) -> None:
        check_count("WIMA.window", self.window)
        if self.buckets is not None:
            check_count("WIMA.buckets", self.buckets, least=2)
        super().__post_init__()

    def __repr__(self) -> str:
        # Saved averages are compared by it, so fields that came later show only if they are set.
        named = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        shown = [(n, v) for n, v, default in named if n in ("window", "part") or v != default]
        return f"WIMA({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def _label(self) -> str:
        return f"wima{self.window}" + ("" if self.buckets is None else f"-k{self.buckets}")

    @property
    def history(self) -> int:
        return self.window if self.buckets is None else 0

    def memory(self, w: Vector, rounds: int) -> int:
        sums = 1 if self.buckets is None else Buckets.most(rounds, self.buckets, self.window)
        return sums * super().memory(w, rounds)

    def init(self, w: Vector) -> AverageState:
        if self.buckets is not None:
            return Buckets.start(w, self.buckets, self.window)
        return WindowSum(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: WindowSum | Buckets, w: Vector, past: Past) -> AverageState:
        if isinstance(state, Buckets):
            return state.push(w)
        if state.seen == 0:
            state.total.zero_()
        state.total.add_(past.as_stored(w))  # what will be subtracted, to the bit
        if state.seen >= self.window:
            state.total.sub_(past.ago(self.window))
        return state._replace(seen=state.seen + 1)

    def value(self, state: WindowSum | Buckets) -> Vector:
        if isinstance(state, Buckets):
            return state.mean(state.within(self.window))
        return (state.total / max(1, self.used(state))).to(state.dtype)

    def used(self, state: WindowSum | Buckets) -> int:
        """How many models `value` is the mean of; 0 before the first."""
        if isinstance(state, Buckets):
            return state.windows[state.within(self.window) - 1]
        return min(state.seen, self.window)
