"""WIMA: the mean of the last W global models."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch

from wima.averaging.auto import AutoWindow
from wima.averaging.base import Averager, AverageState, Past
from wima.averaging.buckets import DEFAULT_K, Buckets
from wima.core.checks import check_count, is_count
from wima.core.errors import check
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

    window = "auto": W is chosen anew in every round; see `AutoWindow`.
    buckets = k: about k log2(W/k) sums (`Buckets`) in place of the last W models.  The mean is then
    over the longest window there is of at most W models: once W models are there, between
    (1 - 1/k) W and W.  Without it, "auto" takes k = 2.
    """

    window: int | Literal["auto"] = 100
    part: str = "all"
    buckets: int | None = None  # of each size, at least 2

    def __post_init__(self) -> None:
        check(
            self.window == "auto" or is_count(self.window),
            f"WIMA.window must be a positive integer or 'auto', got {self.window!r}.",
        )
        if self.buckets is not None:
            check_count("WIMA.buckets", self.buckets, least=2)
        super().__post_init__()

    def __repr__(self) -> str:
        # Saved averages are compared by it, so fields that came later show only if they are set.
        named = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        shown = [(n, v) for n, v, default in named if n in ("window", "part") or v != default]
        return f"WIMA({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def _label(self) -> str:
        window = "-auto" if self.window == "auto" else self.window
        return f"wima{window}" + ("" if self.buckets is None else f"-k{self.buckets}")

    @property
    def judges(self) -> bool:
        return self.window == "auto"

    @property
    def history(self) -> int:
        return 0 if self.window == "auto" or self.buckets else self.window

    def memory(self, w: Vector, rounds: int) -> int:
        longest = None if self.window == "auto" else self.window
        bucketed = longest is None or self.buckets is not None
        sums = Buckets.most(rounds, self.buckets or DEFAULT_K, longest) if bucketed else 1
        return sums * 8 * len(w)

    def init(self, w: Vector) -> AverageState:
        if self.window == "auto":
            return AutoWindow.start(w, self.buckets or DEFAULT_K)
        if self.buckets is not None:
            return Buckets.start(w, self.buckets, self.window)
        return WindowSum(w.to(torch.float64, copy=True), 0, w.dtype)

    def judge(self, state: AutoWindow, fresh: Vector) -> AutoWindow:
        return state.judge(fresh)

    def update(
        self, state: WindowSum | Buckets | AutoWindow, w: Vector, past: Past
    ) -> AverageState:
        if not isinstance(state, WindowSum):
            return state.push(w)
        assert self.window != "auto"
        if state.seen == 0:
            state.total.zero_()
        state.total.add_(past.as_stored(w))  # what will be subtracted, to the bit
        if state.seen >= self.window:
            state.total.sub_(past.ago(self.window))
        return state._replace(seen=state.seen + 1)

    def value(self, state: WindowSum | Buckets | AutoWindow) -> Vector:
        if isinstance(state, AutoWindow):
            return state.buckets.mean(state.buckets.within(state.window))
        assert self.window != "auto"
        if isinstance(state, Buckets):
            return state.mean(state.within(self.window))
        return (state.total / max(1, min(state.seen, self.window))).to(state.dtype)

    def used(self, state: WindowSum | Buckets | AutoWindow) -> int | None:
        if isinstance(state, WindowSum):
            return None
        buckets = state.buckets if isinstance(state, AutoWindow) else state
        window = state.window if isinstance(state, AutoWindow) else self.window
        assert window != "auto"
        return buckets.windows[buckets.within(window) - 1]
