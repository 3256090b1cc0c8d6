"""Differential privacy: averages see nothing that is not released."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from wima.core.errors import UsageError, check


class Privacy(NamedTuple):
    """What one of Flower's two interfaces has for privacy."""

    wrappers: tuple[type, ...]  # strategies that wrap another one and add noise
    rule: str  # the name of the method that aggregates
    mean: type  # the strategy whose rule is the plain mean

    @classmethod
    def of(cls, strategies: ModuleType, rule: str) -> Privacy:
        """That of a module with Flower's strategies."""
        names = [n for n in vars(strategies) if n.startswith(("DifferentialPrivacy", "DPFed"))]
        return cls(tuple(getattr(strategies, n) for n in names), rule, strategies.FedAvg)

    def covers(self, strategy: Any) -> bool:
        """Whether the strategy or one inside it adds noise."""
        return any(isinstance(layer, self.wrappers) for layer in layers(strategy))

    def check_mean(self, strategy: Any) -> None:
        """Raise unless what is released is the clients' mean, plus noise.

        From its difference to the model before, the clients' mean step can be told.
        """
        means = [getattr(kind, self.rule) for kind in (*self.wrappers, self.mean)]
        for layer in layers(strategy):
            check(
                getattr(type(layer), self.rule, None) in means,
                f"window='auto' with differential privacy needs {self.mean.__name__}'s mean, to "
                f"look only at models that are released; {type(layer).__name__} has a rule of its "
                "own. Give a number, for example WIMA(window=100).",
            )

    def refuse_outside(self, strategy: Any) -> None:
        """Raise if a wrapper that adds noise is calling the averaged strategy inside it.

        What it wraps does not know of the wrapper; so its calls are looked for on the stack.
        """
        for caller in _callers():
            if caller is strategy or not isinstance(caller, self.wrappers):
                continue
            if any(layer is strategy for layer in layers(caller)):
                name = type(caller).__name__
                raise UsageError(
                    f"{name}(averaged(...)) would average the models before {name} has added its "
                    "noise, and their average would be released without protection. Put the "
                    f"average outside: averaged({name}(...)), where it only sees what is private."
                )


def layers(strategy: Any) -> Iterator[Any]:
    """The strategy and those that it wraps, outermost first; Flower's wrappers have `strategy`."""
    layer = strategy
    while hasattr(layer, "__dict__"):
        yield layer
        layer = getattr(layer, "strategy", None)


def _callers() -> Iterator[Any]:
    """The `self` of every method that is being called, innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        if "self" in frame.f_code.co_varnames[:1]:
            yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]
