"""WIMA: the mean of the last W global models; W may be fixed, a share of the run, or automatic."""

from bisect import bisect_right
from dataclasses import InitVar, dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, Self

import torch

from wima.averaging.base import Averager
from wima.core.errors import EQUAL, check, check_count, check_equal_weights, is_count
from wima.core.vector import Vector, one_thread
from wima.storage.ring import CACHED, Ring
from wima.storage.states import Buffers

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
    spare: Buffers  # unused sums, kept because freeing and allocating them would fragment memory

    @classmethod
    def start(cls, w: Vector, k: int = DEFAULT_K, longest: int | None = None) -> Self:
        """The state before the first model; w is the initial model, which is never summed."""
        check_count("k", k, least=2)
        if longest is not None:
            check_count("longest", longest)
        return cls((w.to(torch.float64, copy=True),), (0,), w.dtype, k, longest, 0, Buffers())

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

    def update(self, state: Buckets, w: Vector, past: Ring) -> Buckets:
        return state.push(w, self._longest(state.models + 1))

    def value(self, state: Buckets) -> Vector:
        return state.mean(self._count(state))

    def used(self, state: Buckets) -> int:
        return state.windows[self._count(state) - 1]

    def _count(self, state: Buckets) -> int:
        return state.within(self._longest(state.models))


# Each is 1.3 to 1.5 times the previous one: accuracy is flat around the best window.
CANDIDATES = (1, 2, 3, *(n * 2**k for k in range(1, 22) for n in (2, 3)))
REACH = 4  # the longest window is the number of models so far divided by this
RECENT = 0.1  # the share of the rounds so far over which scores are averaged
LEAST = 5  # the minimum number of rounds over which they are averaged
NEAR = 0.9  # the longest window with at least this share of the best score is used


class Choice(NamedTuple):
    """Sums of the models, a score for every candidate, and the one in use."""

    buckets: Buckets
    scores: Vector  # by candidate, float64
    scored: Vector  # number of rounds in each score
    rounds: int  # in which there were scores
    window: int


@dataclass(frozen=True)
class AutoWindow(Averager):
    """The mean of the last W models, with W chosen in every round.

    After a round the server has w and the means m_W of the last W models.  The next round yields
    g, the sum of the clients' own gradients, which were drawn independently of w.  To first order,
    and up to the clients' drift,

        <g, m_W - w>  =  lr * (the loss at m_W - the loss at w)

    The score of W is an exponential mean of this over the last rounds.  Windows hold at most a
    quarter of the models so far: older ones belong to another phase of training.  Of the windows
    whose score is close to the lowest, the longest is used: scores are flat around the best window
    and noisy, and longer windows average out more noise.  If no score is below zero, W is 1.
    Models are kept as sums, k of each size, so the window used is the longest available one of at
    most W models.
    """

    k: int
    needs_gradient = True

    def memory(self, w: Vector, rounds: int) -> int:
        return 8 * len(w) * Buckets.most(rounds, self.k, _longest(rounds))

    def init(self, w: Vector) -> Choice:
        nothing = torch.zeros(len(CANDIDATES), dtype=torch.float64)
        return Choice(Buckets.start(w, self.k), nothing, nothing.clone(), 0, 1)

    def use_gradient(self, state: Choice, gradient: Vector) -> Choice:
        if not state.buckets.models:  # it belongs to the initial model, which is not averaged
            return state
        products = state.buckets.inner(gradient).cumsum(0).cpu()
        means = products / torch.tensor(state.buckets.windows, dtype=torch.float64)
        there = [n for n in CANDIDATES if n <= _longest(state.buckets.models)]
        new = torch.stack([means[state.buckets.within(n) - 1] - means[0] for n in there])
        if not bool(new.isfinite().all()):  # NaN would stay in the scores
            return state
        rounds, allowed = state.rounds + 1, slice(0, len(there))
        scored, scores = state.scored.to("cpu", copy=True), state.scores.to("cpu", copy=True)
        scored[allowed] += 1
        over = scored[allowed].clamp(max=max(LEAST, RECENT * rounds))
        scores[allowed] += (new - scores[allowed]) / over
        window = there[_best(scores[allowed].tolist())]
        return state._replace(scores=scores, scored=scored, rounds=rounds, window=window)

    def update(self, state: Choice, w: Vector, past: Ring) -> Choice:
        longest = _longest(state.buckets.models + 1)
        return state._replace(buckets=state.buckets.push(w, longest))

    def value(self, state: Choice) -> Vector:
        return state.buckets.mean(state.buckets.within(state.window))

    def used(self, state: Choice) -> int:
        return state.buckets.windows[state.buckets.within(state.window) - 1]


def _longest(models: int) -> int:
    return max(1, models // REACH)


def _best(scores: list[float]) -> int:
    """The last candidate whose score is near the lowest, or the first, which has score 0."""
    least = min(scores)
    return max(i for i, score in enumerate(scores) if score <= NEAR * least) if least < 0 else 0


HUGE = 2.0**20  # times the norm of later models: rounding errors would begin to show in float32


class WindowSum(NamedTuple):
    total: Vector  # float64: a float32 sum drifts by 1e-6 in 10,000 rounds
    seen: int  # models so far
    dtype: torch.dtype  # of the models
    # Checkpoints of earlier versions end here.
    largest: float = 0.0  # squared norm of the models since a second sum was last begun
    second: Vector | None = None
    collected: int = 0  # models in the second sum


@dataclass(frozen=True)
class Window(Averager):
    """A running sum of the last W models: an update costs O(d), whatever W.

    The sum keeps the rounding errors of a huge model after that has left.  So a model that is much
    smaller than one before it begins a second sum, which takes over when it has W models: just when
    the last huge one leaves.  Without huge models, no bit of the result depends on this.
    """

    window: int

    @property
    def history(self) -> int:
        return self.window

    def init(self, w: Vector) -> WindowSum:
        return WindowSum(w.to(torch.float64, copy=True), 0, w.dtype)

    def update(self, state: WindowSum, w: Vector, past: Ring) -> WindowSum:
        total, seen, _, largest, second, collected = state
        if seen == 0:
            total.zero_()
        w = past.as_stored(w)  # exactly what will be subtracted
        total.add_(w)
        if seen >= self.window:
            total.sub_(past.ago(self.window))
        # Infinite for models of 1e19, which are huge anyway; tensors without data have no size.
        size = 0.0 if w.is_meta else float(torch.dot(w, w))
        if HUGE**2 * size < largest:
            largest, second, collected = 0.0, torch.zeros_like(total), 0
        if second is not None:
            second.add_(w)
            collected += 1
            if collected == self.window:
                total, second, collected = second, None, 0
        return WindowSum(total, seen + 1, state.dtype, max(largest, size), second, collected)

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
    buckets: keep sums instead of models, at most this many of each size; see `BucketedWindow`.
    """

    window: int | float | Literal["auto"] = 100
    part: str = "all"
    shape: InitVar[str] = EQUAL  # removed
    buckets: int | None = None

    def __post_init__(self, shape: str) -> None:
        check(
            self.window == "auto" or is_count(self.window) or self._is_share,
            "WIMA.window must be a positive integer, a share of the rounds in (0, 1) or 'auto', "
            f"got {self.window!r}.",
        )
        check_equal_weights("WIMA.shape", shape)
        if self.buckets is not None:
            check_count("WIMA.buckets", self.buckets, least=2)
        super().__post_init__()

    def _label(self) -> str:
        window = "-auto" if self.window == "auto" else self.window
        return f"wima{window}" + ("" if self.buckets is None else f"-k{self.buckets}")

    @property
    def _is_share(self) -> bool:
        return isinstance(self.window, float) and 0 < self.window < 1

    def rule(self) -> Averager:
        if self.window == "auto":
            return AutoWindow(self.buckets or DEFAULT_K)
        if self.buckets is not None or self._is_share:
            return BucketedWindow(self.window, self.buckets or DEFAULT_K)
        return Window(int(self.window))
