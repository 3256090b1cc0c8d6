"""The errors that users see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

MANY = 20  # names that are not all listed where one of them is suggested
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


class Diverged(RunError):  # noqa: N818  (as the state is called)
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
    """Raise `UsageError(message)` unless the fact holds."""
    if not fact:
        raise UsageError(message)


def unknown(
    kind: str, name: str, known: Iterable[str], words: Mapping[str, str] = NO_WORDS
) -> UsageError:
    """The error for a name that is not in a registry, with the nearest one that is.

    words: what else some of them are called.
    """
    names = sorted(known)
    meant = {**words, **{name.lower(): name for name in names}}
    near = difflib.get_close_matches(str(name).lower(), meant, n=1, cutoff=0.5)
    hint = f"; did you mean {meant[near[0]]!r}?" if near else "."
    listed = "" if near and len(names) > MANY else f" Known: {', '.join(names)}."
    return UsageError(f"Unknown {kind} {name!r}{hint}{listed}")


class Mistakes:
    """A user's mistakes, collected to name all of them at once."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}

    def add(self, *messages: str) -> None:
        """Note mistakes; one that is there already counts once."""
        self._messages |= dict.fromkeys(messages)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the `UsageError` that the block raises."""
        try:
            yield
        except UsageError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise a `UsageError` with a line for each mistake, if there is one."""
        check(not self._messages, "\n".join(self._messages))
