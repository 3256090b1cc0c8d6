"""Errors shown to users."""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any, Literal, TypeAlias

MANY = 20  # with more names than this, a suggestion replaces the full list


class UsageError(ValueError):
    """A user's mistake; the message says what was expected, what was given, and what to do."""


class RunError(RuntimeError):
    """A run that started and then failed."""


class Diverged(RunError):  # noqa: N818  (the name of the state)
    """A run whose model diverged."""


def check(fact: bool, message: str) -> None:
    """Raise `UsageError(message)` unless the fact is true."""
    if not fact:
        raise UsageError(message)


def unknown(
    kind: str, name: str, known: Iterable[str], words: Mapping[str, str] | None = None
) -> UsageError:
    """The error for a name that is not in a registry; suggests the closest known name.

    words: synonyms of known names.
    """
    names = sorted(known)
    meant = {**(words or {}), **{name.lower(): name for name in names}}
    near = difflib.get_close_matches(str(name).lower(), meant, n=1, cutoff=0.5)
    hint = f"; did you mean {meant[near[0]]!r}?" if near else "."
    listed = "" if near and len(names) > MANY else f" Known: {', '.join(names)}."
    return UsageError(f"Unknown {kind} {name!r}{hint}{listed}")


class Mistakes:
    """Collects a user's mistakes, to report all of them at once."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}

    def add(self, *messages: str) -> None:
        """Add messages; duplicates are dropped."""
        self._messages |= dict.fromkeys(messages)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Add the message of a `UsageError` raised in the block."""
        try:
            yield
        except UsageError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise a `UsageError` with one line per mistake, if there are any."""
        check(not self._messages, "\n".join(self._messages))


def is_number(value: Any) -> bool:
    """Whether the value is a finite int or float within the range of a float."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def is_count(value: Any, least: int = 1) -> bool:
    """Whether the value is an int >= least."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise `UsageError` unless the value is an int >= least."""
    kind = {0: "a non-negative integer", 1: "a positive integer"}.get(least)
    expected = kind or f"an integer >= {least}"
    check(is_count(value, least), f"{name} must be {expected}, got {value!r}.")


def check_rate(name: str, value: Any) -> None:
    """Raise `UsageError` unless the value is a positive finite number, such as a learning rate."""
    check(is_number(value) and value > 0, f"{name} must be a positive number, got {value!r}.")


def check_range(
    name: str,
    value: Any,
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    below: float = inf,
) -> None:
    """Raise `UsageError` unless the value is a finite number in the interval."""
    fits = is_number(value) and least <= value <= most and above < value < below
    low = f"[{least}" if least > -inf else f"({above}"
    high = f"{most}]" if most < inf else f"{below})"
    check(fits, f"{name} must be a number in {low}, {high}, got {value!r}.")


def check_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise `UsageError` unless the value is one of the allowed strings."""
    check(value in allowed, f"{name} must be one of {', '.join(allowed)}, got {value!r}.")


def check_switch(name: str, value: Any) -> None:
    """Raise `UsageError` unless the value is True or False; the string "False" is truthy."""
    check(isinstance(value, bool), f"{name} must be true or false, got {value!r}.")


EQUAL = "linear"  # the only value of `shape` that is left


def check_equal_weights(name: str, shape: str) -> None:
    """Raise unless `shape`, an option that chose the weights in a window, is the plain mean's."""
    check(
        shape == EQUAL,
        f"{name}={shape!r} was removed, and with it all windows with unequal weights: omit it for "
        "the mean, or use another average, such as EMA.",
    )


Phase: TypeAlias = Literal["fedsam", "izmailov"]  # of SWA and of its cyclic learning rate


def check_start(name: str, start: Any) -> None:
    """Raise unless a start is a round 0, 1, ... or a share in (0, 1)."""
    check_range(name, start, least=0)
    whole = float(start).is_integer()
    check(whole or start < 1, f"{name} must be a whole round or a share in (0, 1), got {start!r}.")


def start_round(name: str, start: float, rounds: int) -> int:
    """The round that `start` means in a run of that length."""
    t = int(start * rounds) if 0 < start < 1 else int(start)
    check(t < rounds, f"{name} must be a round of the run, 0 ... {rounds - 1}, got {start!r}.")
    return t
