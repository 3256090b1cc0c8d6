"""The clients' mean step of a round, by which a window that chooses itself is judged.

It is formed before the strategy's own rule: the step of a momentum or of Adam says where the run
came from, not where the loss falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Generic, TypeAlias, TypeVar

import torch

from wima.core.vector import Vector
from wima.engine.base import RunningMean
from wima.flower.averages.models import Arrays, Models, flatten, log, shapes_of

Packed = TypeVar("Packed")  # Flower's type of a model
Reply = TypeVar("Reply")
Read: TypeAlias = Callable[[Reply], tuple[Packed, float] | None]  # a client's model, its weight


def overhear(replies: Iterable[Reply], take: Callable[[Reply], None]) -> Iterable[Reply]:
    """The replies as they came, each of them taken; those of an iterator on their way."""
    if isinstance(replies, Iterator):
        return _passing(replies, take)
    for reply in replies:
        take(reply)
    return replies


def _passing(replies: Iterator[Reply], take: Callable[[Reply], None]) -> Iterator[Reply]:
    for reply in replies:
        take(reply)
        yield reply


class MeanStep:
    """start - the weighted mean of the clients' models.  A sum is kept, not the models.

    Models that are not like `start` are left out: other arrays, numbers that are not finite.
    """

    def __init__(self, start: Arrays, averaged: Sequence[str]) -> None:
        self._start, self._averaged = flatten(start, averaged, torch.float64), averaged
        self._shapes, self._mean = shapes_of(start), RunningMean()
        self._room = torch.empty_like(self._start)  # taken anew for every model, it costs more time

    def add(self, arrays: Arrays, weight: float) -> None:
        """Take in a client's model; `ValueError` if it is left out."""
        if shapes_of(arrays) != self._shapes:
            raise ValueError("the model has other arrays than the one that was sent")
        if any(arrays[name].dtype.kind not in "biuf" for name in self._averaged):
            raise ValueError("the model has arrays that are not real numbers")
        w = flatten(arrays, self._averaged, torch.float64, out=self._room)
        if not bool(torch.isfinite(w.sum())):
            raise ValueError("the model is not finite")
        if not 0 <= weight < inf:
            raise ValueError(f"the weight is {weight}")
        self._mean.add(w, weight)

    @property
    def value(self) -> Vector | None:
        """The mean step; None if there is none."""
        mean = self._mean.value
        return None if mean is None else self._start - mean


class Steps(Generic[Packed]):
    """Forms the mean step of every round, from the replies of clients or from what is released.

    released: the strategy is private, so the only models to look at are those that it gives out.
    Nothing here raises because of what clients sent: a reply that cannot be used is left out.
    """

    def __init__(self, unpack: Callable[[Packed], Arrays], *, released: bool) -> None:
        self._unpack, self._released = unpack, released
        self._step: MeanStep | None = None
        self._left_out = 0

    def send(self, packed: Packed, models: Models) -> None:
        """Begin a round, with the model that clients get."""
        self._step, self._left_out = None, 0
        with suppress(Exception):  # a model that cannot be read is no concern of ours
            start = self._unpack(packed)
            if models.has_shapes_of(start):
                self._step = MeanStep(start, models.averaged)

    def listen(self, replies: Iterable[Reply], read: Read[Reply, Packed]) -> Iterable[Reply]:
        """The replies as they came."""
        if self._step is None or self._released:
            return replies
        return overhear(replies, partial(self._take, self._step, read))

    def _take(self, step: MeanStep, read: Read[Reply, Packed], reply: Reply) -> None:
        try:
            found = read(reply)
            if found is not None:
                step.add(self._unpack(found[0]), float(found[1]))
        except Exception:  # whatever it is, the strategy decides what to do with the reply
            self._left_out += 1

    def end(self, t: int, arrays: Arrays) -> Vector | None:
        """The mean step of round t, whose model is given; None if there is none."""
        step, self._step = self._step, None
        if step is None:
            return None
        if self._released:
            with suppress(ValueError):
                step.add(arrays, 1.0)
        if self._left_out:
            log.warning("Round %s: replies that do not count for W: %s.", t, self._left_out)
        return step.value
