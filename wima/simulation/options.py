"""The options of a run that are plain numbers and names, declared once for Python and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from wima.core.checks import check_count, check_one_of, check_rate, is_count
from wima.core.errors import check

NOTHING: Mapping[str, Any] = MappingProxyType({})

Weighting: TypeAlias = Literal["examples", "uniform"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The number of rounds and clients, the learning rate, and how rounds are computed.

    eval_every: evaluate every n rounds, and after each of the last `eval_last` ones; 0: never.
    client_eval_every: evaluate on each client's own test examples, every n rounds and after the
    last one; 0: never.
    client_sample: the largest number of clients to evaluate, drawn once.
    calibration: also compare confidence with accuracy whenever models are evaluated.
    stack_server: allow a server optimizer after an algorithm that has its own server rule.
    diverged: end the run when the model's norm is not finite, or exceeds the initial model's norm
    (or 1, if that is larger) times this factor.
    """

    rounds: int = 500
    clients_per_round: int = 10
    lr: float = 0.1  # of the clients
    weighting: Weighting = "examples"
    seed: int = 0
    stack_server: bool = False
    eval_every: int = 1
    eval_last: int = 100
    client_eval_every: int = 0
    client_sample: int = 1000
    calibration: bool = False
    diverged: float = 1e4
    engine: str = "auto"
    workers: int | None = None  # processes that train, including this one

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds)
        check_rate("lr", self.lr)
        check_rate("diverged", self.diverged)
        check_count("eval_every", self.eval_every, least=0)
        check_count("eval_last", self.eval_last, least=0)
        check_count("client_eval_every", self.client_eval_every, least=0)
        check_count("client_sample", self.client_sample)
        seed = self.seed
        check(is_count(seed, 0) and seed < 2**32, f"seed must be in 0 ... 2**32 - 1, got {seed!r}.")
        check_one_of("weighting", self.weighting, ("examples", "uniform"))
        if self.workers is not None:
            check_count("workers", self.workers)

    def evaluates(self, t: int) -> bool:
        """Whether models are evaluated after t rounds."""
        if self.evaluates_clients(t):
            return True
        if not self.eval_every:
            return False
        return t % self.eval_every == 0 or t > self.rounds - max(1, self.eval_last)

    def evaluates_clients(self, t: int) -> bool:
        """Whether models are evaluated for each client after t rounds."""
        every = self.client_eval_every
        return every > 0 and (t % every == 0 or t == self.rounds)
