"""The errors that users see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A user's mistake; the message says what was expected, what was given, and what to do."""


class RunError(RuntimeError):
    """A run that started and then failed."""


class Diverged(RunError):  # noqa: N818  (as the state is called)
    """A run whose model diverged."""


def check(fact: bool, message: str) -> None:
    """Raise `UsageError(message)` unless the fact holds."""
    if not fact:
        raise UsageError(message)


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a registry, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UsageError(f"Unknown {kind} {name!r}{hint} Known: {', '.join(names)}.")
