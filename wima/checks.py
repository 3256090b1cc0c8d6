"""Whether a value is the number it should be; bool is not one."""

from __future__ import annotations

from math import isfinite
from typing import Any

from wima.errors import check


def is_number(value: Any) -> bool:
    """A finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def is_count(value: Any, least: int = 1) -> bool:
    """An int that is at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise `UsageError` unless the value is an int >= least."""
    kind = {0: "a non-negative integer", 1: "a positive integer"}.get(least)
    expected = kind or f"an integer of at least {least}"
    check(is_count(value, least), f"{name} must be {expected}, got {value!r}.")


def check_rate(name: str, value: Any) -> None:
    """Raise `UsageError` unless the value is a positive finite number, as learning rates are."""
    check(is_number(value) and value > 0, f"{name} must be a positive number, got {value!r}.")
