"""Differential privacy: averages see only models that are released."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from wima.core.errors import UsageError, check


class Privacy(NamedTuple):
    """The strategies for privacy in one of Flower's two interfaces."""

    wrappers: tuple[type, ...]  # strategies that wrap another strategy and add noise
    rule: str  # the name of the method that aggregates
    mean: type  # the strategy that computes the plain mean

    @classmethod
    def of(cls, strategies: ModuleType, rule: str) -> Privacy:
        """Find them in a module of Flower strategies."""
        names = [n for n in vars(strategies) if n.startswith(("DifferentialPrivacy", "DPFed"))]
        return cls(tuple(getattr(strategies, n) for n in names), rule, strategies.FedAvg)

    def covers(self, strategy: Any) -> bool:
        """Whether the strategy, or one that it wraps, adds noise."""
        return any(isinstance(layer, self.wrappers) for layer in layers(strategy))

    def check_mean(self, strategy: Any) -> None:
        """Raise unless the released model is the clients' mean plus noise.

        Its difference from the previous model is then the clients' mean step.
        """
        means = [getattr(kind, self.rule) for kind in (*self.wrappers, self.mean)]
        for layer in layers(strategy):
            check(
                getattr(type(layer), self.rule, None) in means,
                f"window='auto' with differential privacy needs {self.mean.__name__}'s mean, so "
                f"that it sees only released models; {type(layer).__name__} aggregates in its own "
                "way. Use a fixed window, for example WIMA(window=100).",
            )

    def refuse_outside(self, strategy: Any) -> None:
        """Raise if a wrapper that adds noise is calling the averaged strategy inside it.

        The inner strategy has no reference to its wrapper, so the call stack is searched for it.
        """
        for caller in _callers():
            if caller is strategy or not isinstance(caller, self.wrappers):
                continue
            if any(layer is strategy for layer in layers(caller)):
                name = type(caller).__name__
                raise UsageError(
                    f"{name}(averaged(...)) would average the models before {name} adds its "
                    "noise, and their average would be released without protection. Put the "
                    f"average outside: averaged({name}(...)), where it only sees private models."
                )


def layers(strategy: Any) -> Iterator[Any]:
    """The strategy and those that it wraps (in `strategy`), outermost first."""
    layer = strategy
    while hasattr(layer, "__dict__"):
        yield layer
        layer = getattr(layer, "strategy", None)


def _callers() -> Iterator[Any]:
    """The `self` of every method on the call stack, innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        if "self" in frame.f_code.co_varnames[:1]:
            yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
