"""The client learning rate over a run: lr times a factor that depends on the round."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any, Protocol

from wima.averaging.swa import Phase, check_start, start_round
from wima.core.checks import check_count, check_one_of, check_range


class Schedule(Protocol):
    """A factor for each round t = 0 ... rounds - 1."""

    def factor(self, t: int, rounds: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate in every round."""

    def factor(self, t: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """The rate is multiplied by `decay` after each round."""

    decay: float = 0.998

    def __post_init__(self) -> None:
        check_range("Exponential.decay", self.decay, above=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return float(self.decay**t)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine wave from 1 in the first round down to `final` after the last."""

    final: float = 0.0

    def __post_init__(self) -> None:
        check_range("Cosine.final", self.final, least=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return self.final + (1 - self.final) * (1 + cos(pi * t / rounds)) / 2


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """SWA's cycles: constant until `start`, then falling to `low` again and again.

    phase "fedsam" counts cycles from round 0, as the code of Caldarola et al. (2022) does;
    "izmailov" from `start`, as Izmailov et al. (2018) do.  A cycle of 1 keeps the rate constant.
    """

    start: float = 0.75  # a round, or a share of all rounds if below 1
    cycle: int = 10
    low: float = 0.01
    phase: Phase = "fedsam"

    def __post_init__(self) -> None:
        check_start("Cyclic.start", self.start)
        check_count("Cyclic.cycle", self.cycle)
        check_range("Cyclic.low", self.low, above=0, most=1)
        check_one_of("Cyclic.phase", self.phase, ("fedsam", "izmailov"))

    def factor(self, t: int, rounds: int) -> float:
        start = start_round("Cyclic.start", self.start, rounds)
        if t < start or self.cycle == 1:
            return 1.0
        place = t if self.phase == "fedsam" else t - start
        a = (place % self.cycle + 1) / self.cycle
        return (1 - a) + a * self.low


BY_NAME: dict[str, type[Any]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "cyclic": Cyclic,
}
