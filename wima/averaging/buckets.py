"""Every window of a run from a few sums: an exponential histogram over the models."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

import torch

from wima.averaging.base import Averager, Past
from wima.core.checks import check_count
from wima.core.vector import Vector, one_thread
from wima.storage.ring import CACHED
from wima.storage.states import Spare

DEFAULT_K = 2  # 24 sums after 10,000 models; 3 would need 34


class Buckets(NamedTuple):
    """Sums of consecutive models, in buckets of 1, 2, 4, ... models.

    There are at most k buckets of each size.  If there is one more, the two oldest are merged into
    one of twice the size (Datar et al., Maintaining Stream Statistics over Sliding Windows, 2002).
    The n newest buckets are a window.  For every W up to the number of models or `longest` there is

        a window within a factor of 1 + 1/k of W,
        a window of W' models with (1 - 1/k) W <= W' <= W.

    T models take about k log2(T/k) sums; `most` is the exact maximum.  With `longest`, a bucket is
    dropped when all its models are older than the last `longest`.

    This is an averager's state: `push` returns the next state and reuses the memory of this one.
    Before the first model there is one bucket of size 0, with the initial model.
    """

    sums: tuple[Vector, ...]  # float64, newest first
    sizes: tuple[int, ...]  # models in each bucket
    dtype: torch.dtype  # of the models
    k: int
    longest: int | None
    models: int  # so far
    spare: Spare  # unused sums, kept because freeing and allocating them would fragment memory

    @classmethod
    def start(cls, w: Vector, k: int = DEFAULT_K, longest: int | None = None) -> Self:
        """The state before the first model; w is the initial model, which is never summed."""
        check_count("k", k, least=2)
        if longest is not None:
            check_count("longest", longest)
        return cls((w.to(torch.float64, copy=True),), (0,), w.dtype, k, longest, 0, Spare())

    def push(self, w: Vector, longest: int | None = None) -> Self:
        """The state after model w; longest: replaces the previous limit and may not be lower."""
        longest = longest or self.longest
        sums, sizes, size = [w, *self.sums], [1, *self.sizes], 1
        while sizes.count(size) > self.k:
            oldest = bisect_right(sizes, size) - 1  # of this size
            newer = sums.pop(oldest - 1)  # never w: this size has at least three buckets
            sums[oldest - 1].add_(newer)
            sizes[oldest - 1 : oldest + 1] = [2 * size]
            self.spare.append(newer)
            size *= 2
        beyond = longest is not None and sum(sizes[:-1]) >= longest
        if beyond or sizes[-1] == 0:
            self.spare.append(sums.pop())
            sizes.pop()
        sums[0] = self.spare.pop() if self.spare else torch.empty_like(w, dtype=torch.float64)
        sums[0].copy_(w)
        models = self.models + 1
        return self._replace(sums=tuple(sums), sizes=tuple(sizes), longest=longest, models=models)

    @property
    def windows(self) -> tuple[int, ...]:
        """The number of models in the 1, 2, ... newest buckets."""
        return tuple(accumulate(self.sizes))

    def within(self, window: int) -> int:
        """The number of newest buckets that together hold at most `window` models."""
        return bisect_right(self.windows, window)

    def mean(self, n: int) -> Vector:
        """The mean of the models in the n newest buckets, in the models' dtype."""
        mean, models = torch.empty_like(self.sums[0], dtype=self.dtype), max(1, sum(self.sizes[:n]))
        rows = (torch.split(s, CACHED) for s in (mean, *self.sums[:n]))
        for piece, newest, *older in zip(*rows, strict=True):  # their total stays in the cache
            total = newest.clone()
            for part in older:
                total.add_(part)
            piece.copy_(total.div_(models))
        return mean

    def inner(self, v: Vector) -> Vector:
        """The inner product of v with each sum, in float64; a shorter v uses their first entries.

        `inner(v).cumsum(0)` divided by `windows` is the inner product with each window's mean.
        """
        factor = v.to(torch.float64)
        with one_thread():
            return torch.stack([torch.dot(s[: len(v)], factor) for s in self.sums])

    @staticmethod
    def most(models: int, k: int = DEFAULT_K, longest: int | None = None) -> int:
        """The largest number of sums in a sequence of this many models."""
        count, size, left = 0, 1, models
        while left >= size:
            fit = min(k, left // size)
            count, left, size = count + fit, left - fit * size, 2 * size
        if longest is not None and longest < models:  # the oldest bucket may extend beyond it
            return min(count, 1 + Buckets.most(longest - 1, k))
        return count


@dataclass(frozen=True)
class BucketedWindow(Averager):
    """The mean of about the last W models, from about k log2(W/k) sums instead of the models.

    It uses the longest available window of at most W models, which holds between (1 - 1/k) W and W
    models once there are W.  A window below 1 is a share of the models so far.
    """

    window: float
    k: int

    def _longest(self, models: int) -> int:
        return int(max(1, self.window * models) if self.window < 1 else self.window)

    def memory(self, w: Vector, rounds: int) -> int:
        return 8 * len(w) * Buckets.most(rounds, self.k, self._longest(rounds))

    def init(self, w: Vector) -> Buckets:
        return Buckets.start(w, self.k, self._longest(1))

    def update(self, state: Buckets, w: Vector, past: Past) -> Buckets:
        return state.push(w, self._longest(state.models + 1))

    def value(self, state: Buckets) -> Vector:
        return state.mean(self._count(state))

    def used(self, state: Buckets) -> int:
        return state.windows[self._count(state) - 1]

    def _count(self, state: Buckets) -> int:
        return state.within(self._longest(state.models))
