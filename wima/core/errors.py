"""Errors shown to users."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

MANY = 20  # with more names than this, a suggestion replaces the full list
NO_WORDS: Mapping[str, str] = MappingProxyType({})


class UsageError(ValueError):
    """A user's mistake; the message says what was expected, what was given, and what to do.

    Examples:
        >>> import wima
        >>> wima.EMA(decay=1.5)
        Traceback (most recent call last):
        ...
        wima.core.errors.UsageError: EMA.decay must be ... got 1.5.
    """


class RunError(RuntimeError):
    """A run that started and then failed.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> with wima.simulate(task, rounds=2, clients_per_round=1) as simulation:
        ...     record = next(simulation)
        >>> next(simulation)
        Traceback (most recent call last):
        ...
        wima.core.errors.RunError: The simulation was closed after 1 of 2 rounds.
    """


class Diverged(RunError):  # noqa: N818  (the name of the state)
    """A run whose model diverged.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> wima.run(task, rounds=2, clients_per_round=1, lr=1e9)
        Traceback (most recent call last):
        ...
        wima.core.errors.Diverged: round 1: the norm of the model is ...; a smaller lr may help.
    """


def check(fact: bool, message: str) -> None:
    """Raise `UsageError(message)` unless the fact is true."""
    if not fact:
        raise UsageError(message)


def unknown(
    kind: str, name: str, known: Iterable[str], words: Mapping[str, str] = NO_WORDS
) -> UsageError:
    """The error for a name that is not in a registry; suggests the closest known name.

    words: synonyms of known names.
    """
    names = sorted(known)
    meant = {**words, **{name.lower(): name for name in names}}
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
