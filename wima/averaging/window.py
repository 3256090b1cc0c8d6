"""WIMA: the mean of the last W global models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from wima.averaging.auto import AutoWindow
from wima.averaging.base import Averager, AverageState, Past
from wima.averaging.buckets import DEFAULT_K, BucketedWindow
from wima.averaging.shaped import ShapedWindow
from wima.core.checks import check_count, is_count
from wima.core.errors import check
from wima.core.shapes import LINEAR, check_shape
from wima.core.vector import Vector


class WindowSum(NamedTuple):
    total: Vector  # float64: a float32 sum drifts by 1e-6 in 10,000 rounds
    seen: int  # models so far
    dtype: torch.dtype  # of the models


@dataclass(frozen=True)
class Window(Averager):
    """A running sum of the last W models: an update costs O(d), whatever W."""

    window: int

    @property
    def history(self) -> int:
        return self.window

    def init(self, w: Vector) -> WindowSum:
        return WindowSum(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: WindowSum, w: Vector, past: Past) -> WindowSum:
        if state.seen == 0:
            state.total.zero_()
        state.total.add_(past.as_stored(w))  # exactly what will be subtracted
        if state.seen >= self.window:
            state.total.sub_(past.ago(self.window))
        return state._replace(seen=state.seen + 1)

    def value(self, state: WindowSum) -> Vector:
        return (state.total / max(1, min(state.seen, self.window))).to(state.dtype)


@dataclass(frozen=True)
class WIMA(Averager):
    """The mean of the last W global models.

        w_WIMA = (1/W) * sum of the last W models    (Eq. 4 of the paper)

    Eq. 4 applies once there are W models; before that, all models so far are averaged, so that
    curves begin at round 1.  The average equals W server steps from the model before the window,
    with step j scaled by (W - j)/W for j = 0 ... W - 1: a learning-rate decay (Eq. 6 and 7).

    window: W; or a share of the models so far, less than 1, with models kept as sums; or "auto",
    which chooses W in every round, see `AutoWindow`.
    shape: of the learning-rate decay: "linear", "sqrt" or "cosine"; see `ShapedWindow`.
    buckets: keep sums instead of models, at most this many of each size; see `BucketedWindow`.

    Examples:
        >>> import torch, wima
        >>> from wima.averaging import Watch
        >>> watch = Watch({"mean": wima.WIMA(window=2)}, w=torch.zeros(1))
        >>> for value in (1.0, 2.0, 4.0):
        ...     watch.update(torch.tensor([value]))
        >>> watch.vectors()["mean"]  # of the last two models
        tensor([3.])
    """

    window: int | float | Literal["auto"] = 100
    part: str = "all"
    shape: str = LINEAR
    buckets: int | None = None

    def __post_init__(self) -> None:
        check(
            self.window == "auto" or is_count(self.window) or self._is_share,
            "WIMA.window must be a positive integer, a share of the rounds in (0, 1) or 'auto', "
            f"got {self.window!r}.",
        )
        check_shape("WIMA.shape", self.shape)
        if self.buckets is not None:
            check_count("WIMA.buckets", self.buckets, least=2)
        check(
            self.shape == LINEAR or (is_count(self.window) and self.buckets is None),
            f"WIMA.shape={self.shape!r} needs past models, which window='auto', shares and buckets "
            "do not keep; use a fixed window without buckets.",
        )
        super().__post_init__()

    def _label(self) -> str:
        window = "-auto" if self.window == "auto" else self.window
        shape = "" if self.shape == LINEAR else f"-{self.shape}"
        return f"wima{window}{shape}" + ("" if self.buckets is None else f"-k{self.buckets}")

    @property
    def _is_share(self) -> bool:
        return isinstance(self.window, float) and 0 < self.window < 1

    @property
    def _way(self) -> Averager:
        """How the mean is computed."""
        if self.window == "auto":
            return AutoWindow(self.buckets or DEFAULT_K)
        if self.buckets is not None or self._is_share:
            return BucketedWindow(self.window, self.buckets or DEFAULT_K)
        if self.shape != LINEAR:
            return ShapedWindow(int(self.window), self.shape)
        return Window(int(self.window))

    @property
    def judges(self) -> bool:
        return self._way.judges

    @property
    def history(self) -> int:
        return self._way.history

    def memory(self, w: Vector, rounds: int) -> int:
        return self._way.memory(w, rounds)

    def init(self, w: Vector) -> AverageState:
        return self._way.init(w)

    def judge(self, state: AverageState, fresh: Vector) -> AverageState:
        return self._way.judge(state, fresh)

    def update(self, state: AverageState, w: Vector, past: Past) -> AverageState:
        return self._way.update(state, w, past)

    def value(self, state: AverageState) -> Vector:
        return self._way.value(state)

    def used(self, state: AverageState) -> int | None:
        return self._way.used(state)
