"""Clients that fail: they drop out, finish only a part of their steps, or return nonsense.

Faults are a function of (seed, round, client): the same clients fail in every engine, with every
algorithm, and after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass

from wima.core.checks import check_range, check_switch
from wima.core.randomness import rng


@dataclass(frozen=True, kw_only=True)
class Faults:
    """dropout: the probability that a client of the cohort never answers.

    stragglers: the probability that a client stops early, after a share of its steps drawn
    uniformly between 0 and 1, and after at least one step.
    exclude: leave out clients that send or would remember a vector that is not finite; otherwise
    the run ends as diverged.

    Examples:
        >>> import wima
        >>> faults = wima.Faults(dropout=0.5)
        >>> faults.survivors(seed=0, t=0, cohort=[0, 1, 2, 3, 4, 5])
        [4, 5]
    """

    dropout: float = 0.0
    stragglers: float = 0.0
    exclude: bool = False

    def __post_init__(self) -> None:
        check_range("dropout", self.dropout, least=0, most=1)
        check_range("stragglers", self.stragglers, least=0, most=1)
        check_switch("exclude", self.exclude)

    def survivors(self, seed: int, t: int, cohort: list[int]) -> list[int]:
        """The clients of the cohort that answer."""
        if not self.dropout:
            return cohort
        return [i for i in cohort if rng("faults", seed, t, i).random() >= self.dropout]

    def share(self, seed: int, t: int, client: int) -> float:
        """The share of its steps that a client finishes."""
        if not self.stragglers:
            return 1.0
        _, stops, share = rng("faults", seed, t, client).random(3)
        return float(share) if stops < self.stragglers else 1.0
