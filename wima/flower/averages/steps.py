"""The clients' mean step of a round, which window="auto" uses to choose its window.

It is computed before the strategy's own rule: a step with momentum or Adam shows where the run came
from, not where the loss decreases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Generic, TypeAlias, TypeVar

import torch

from wima.core.vector import Vector
from wima.flower.averages.models import Arrays, Models, flatten, log, shapes_of
from wima.simulation.engines.base import RunningMean

Packed = TypeVar("Packed")  # Flower's type of a model
Reply = TypeVar("Reply")
Read: TypeAlias = Callable[[Reply], tuple[Packed, float] | None]  # a client's model, its weight


def overhear(replies: Iterable[Reply], take: Callable[[Reply], None]) -> Iterable[Reply]:
    """Pass each reply to `take` and return the replies; an iterator is not consumed early."""
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
    """`start` minus the weighted mean of the clients' models.  Only a sum is kept, not the models.

    Models that do not match `start` are left out: other arrays or non-finite numbers.
    """

    def __init__(self, start: Arrays, averaged: Sequence[str]) -> None:
        self._start, self._averaged = flatten(start, averaged, torch.float64), averaged
        self._shapes, self._mean = shapes_of(start), RunningMean()
        self._room = torch.empty_like(self._start)  # allocated once, which is faster

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add a client's model; `ValueError` if it is left out."""
        if shapes_of(arrays) != self._shapes:
            raise ValueError("the arrays of the model differ from those that were sent")
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
        """The mean step; None without models."""
        mean = self._mean.value
        return None if mean is None else self._start - mean


class Steps(Generic[Packed]):
    """Computes the mean step of every round, from the clients' replies or from released models.

    released: the strategy is private, so only the models that it releases are used.
    Never raises because of what clients sent: a reply that cannot be used is left out.
    """

    def __init__(self, unpack: Callable[[Packed], Arrays], *, released: bool) -> None:
        self._unpack, self._released = unpack, released
        self._step: MeanStep | None = None
        self._left_out = 0

    def send(self, packed: Packed, models: Models) -> None:
        """Start a round with the model that clients receive."""
        self._step, self._left_out = None, 0
        with suppress(Exception):  # a model that cannot be read is for the strategy to handle
            start = self._unpack(packed)
            if models.has_shapes_of(start):
                self._step = MeanStep(start, models.averaged)

    def listen(self, replies: Iterable[Reply], read: Read[Reply, Packed]) -> Iterable[Reply]:
        """The replies, unchanged; each is added to the mean on the way."""
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
        """The mean step of round t, given the round's model; None if there is none."""
        step, self._step = self._step, None
        if step is None:
            return None
        if self._released:
            with suppress(ValueError):
                step.add(arrays, 1.0)
        if self._left_out:
            log.warning("Round %s: replies not used to choose W: %s.", t, self._left_out)
        return step.value
