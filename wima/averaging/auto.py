"""The window that chooses itself: which average would the clients' newest gradients prefer?"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch

from wima.averaging.buckets import Buckets
from wima.core.vector import Vector

# Each is 1.3 to 1.5 times the one before: accuracy is flat around its best window.
CANDIDATES = (1, 2, 3, *(n * 2**k for k in range(1, 22) for n in (2, 3)))
RECENT = 0.1  # the share of the rounds so far over which scores are averaged
LEAST = 5  # rounds over which they are averaged at least


class AutoWindow(NamedTuple):
    """Sums of the models in buckets, and a score for every window.

    After round t the server has w and the means m_W of the last W models.  The next round brings
    fresh, what the own gradients of clients add up to, which were drawn independently of w.  To
    first order, and up to the clients' drift,

        <fresh, m_W - w>  =  lr * (the loss at m_W - the loss at w)

    The score of a window is the mean of that over the last rounds.  The window with the least
    score is used; if none is below zero, the newest model alone.
    """

    buckets: Buckets
    scores: Vector  # by candidate, float64
    judged: Vector  # rounds that a score is of
    rounds: int  # judged so far
    window: int  # the candidate in use

    @classmethod
    def start(cls, w: Vector, k: int) -> Self:
        """The state before the first model."""
        nothing = torch.zeros(len(CANDIDATES), dtype=torch.float64)
        return cls(Buckets.start(w, k), nothing, nothing.clone(), 0, 1)

    def judge(self, fresh: Vector) -> Self:
        """The state after the fresh gradients at the newest model."""
        windows = self.buckets.windows
        if not windows[-1]:  # clients trained from the initial model, which is not averaged
            return self
        products = self.buckets.inner(fresh).cumsum(0).cpu()
        means = products / torch.tensor(windows, dtype=torch.float64)
        there = [n for n in CANDIDATES if n <= windows[-1]]
        new = torch.stack([means[self.buckets.within(n) - 1] - means[0] for n in there])
        rounds, known = self.rounds + 1, slice(0, len(there))
        judged, scores = self.judged.clone(), self.scores.clone()
        judged[known] += 1
        over = judged[known].clamp(max=max(LEAST, RECENT * rounds))
        scores[known] += (new - scores[known]) / over
        best = int(scores[known].argmin())  # candidate 1 has score 0: none below it, none better
        return self._replace(scores=scores, judged=judged, rounds=rounds, window=CANDIDATES[best])

    def push(self, w: Vector) -> Self:
        """The state after model w."""
        return self._replace(buckets=self.buckets.push(w))
