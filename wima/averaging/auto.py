"""The automatic window: use the average that the clients' newest gradients prefer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from wima.averaging.base import Averager, Past
from wima.averaging.buckets import Buckets
from wima.core.vector import Vector

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
    judged: Vector  # number of rounds in each score
    rounds: int  # scored so far
    window: int


@dataclass(frozen=True)
class AutoWindow(Averager):
    """The mean of the last W models, with W chosen in every round.

    After a round the server has w and the means m_W of the last W models.  The next round yields
    fresh, the sum of the clients' own gradients, which were drawn independently of w.  To first
    order, and up to the clients' drift,

        <fresh, m_W - w>  =  lr * (the loss at m_W - the loss at w)

    The score of W is an exponential mean of this over the last rounds.  Windows hold at most a
    quarter of the models so far: older ones belong to another phase of training.  Of the windows
    whose score is close to the lowest, the longest is used: scores are flat around the best window
    and noisy, and longer windows average out more noise.  If no score is below zero, W is 1.
    Models are kept as sums, k of each size, so the window used is the longest available one of at
    most W models.
    """

    k: int
    judges = True

    def memory(self, w: Vector, rounds: int) -> int:
        return 8 * len(w) * Buckets.most(rounds, self.k, _longest(rounds))

    def init(self, w: Vector) -> Choice:
        nothing = torch.zeros(len(CANDIDATES), dtype=torch.float64)
        return Choice(Buckets.start(w, self.k), nothing, nothing.clone(), 0, 1)

    def judge(self, state: Choice, fresh: Vector) -> Choice:
        if not state.buckets.models:  # fresh belongs to the initial model, which is not averaged
            return state
        products = state.buckets.inner(fresh).cumsum(0).cpu()
        means = products / torch.tensor(state.buckets.windows, dtype=torch.float64)
        there = [n for n in CANDIDATES if n <= _longest(state.buckets.models)]
        new = torch.stack([means[state.buckets.within(n) - 1] - means[0] for n in there])
        if not bool(new.isfinite().all()):  # NaN would stay in the scores
            return state
        rounds, known = state.rounds + 1, slice(0, len(there))
        judged, scores = state.judged.to("cpu", copy=True), state.scores.to("cpu", copy=True)
        judged[known] += 1
        over = judged[known].clamp(max=max(LEAST, RECENT * rounds))
        scores[known] += (new - scores[known]) / over
        window = there[_best(scores[known].tolist())]
        return state._replace(scores=scores, judged=judged, rounds=rounds, window=window)

    def update(self, state: Choice, w: Vector, past: Past) -> Choice:
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
