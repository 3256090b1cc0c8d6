"""The client learning rate over a run: lr times a factor that depends on the round."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any, Protocol

from wima.averaging.swa import Phase, check_start, start_round
from wima.core.checks import check_count, check_one_of, check_range


class Schedule(Protocol):
    """A factor for each round t = 0 ... rounds - 1.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> class Halved:
        ...     def factor(self, t, rounds):
        ...         return 1.0 if t < rounds / 2 else 0.5
        >>> run = wima.simulate(task, schedule=Halved(), lr=0.1, rounds=4, clients_per_round=1)
        >>> [record.lr for record in run]
        [0.1, 0.1, 0.05, 0.05]
    """

    def factor(self, t: int, rounds: int) -> float:
        """The factor of lr in round t."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate in every round.

    Examples:
        >>> import wima
        >>> [wima.Constant().factor(t, rounds=3) for t in range(3)]
        [1.0, 1.0, 1.0]
    """

    def factor(self, t: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """The rate is multiplied by `decay` after each round.

    Examples:
        >>> import wima
        >>> [wima.Exponential(decay=0.5).factor(t, rounds=3) for t in range(3)]
        [1.0, 0.5, 0.25]
    """

    decay: float = 0.998

    def __post_init__(self) -> None:
        check_range("Exponential.decay", self.decay, above=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return float(self.decay**t)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine wave, from 1 in the first round down to `final` after the last.

    Examples:
        >>> import wima
        >>> [round(wima.Cosine().factor(t, rounds=4), 2) for t in range(4)]
        [1.0, 0.85, 0.5, 0.15]
    """

    final: float = 0.0

    def __post_init__(self) -> None:
        check_range("Cosine.final", self.final, least=0, most=1)

    def factor(self, t: int, rounds: int) -> float:
        return self.final + (1 - self.final) * (1 + cos(pi * t / rounds)) / 2


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """SWA's cycles: constant until `start`, then falling to `low` in every cycle.

    phase "fedsam" counts cycles from round 0, as in the code of Caldarola et al. (2022);
    "izmailov" counts from `start`, as in Izmailov et al. (2018).  A cycle of 1 keeps the rate
    constant.

    Examples:
        >>> import wima
        >>> schedule = wima.Cyclic(start=2, cycle=2, low=0.5)
        >>> [schedule.factor(t, rounds=6) for t in range(6)]
        [1.0, 1.0, 0.75, 0.5, 0.75, 0.5]
    """

    start: float = 0.75  # a round, or a share of all rounds if less than 1
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
