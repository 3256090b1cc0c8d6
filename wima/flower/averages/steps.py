"""The clients' mean step of a round, which window="auto" uses to choose its window.

It is computed before the strategy's own rule: a step with momentum or Adam shows where the run came
from, not where the loss decreases.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

import torch

from wima.core.vector import Vector
from wima.flower.arrays import Arrays, flatten, log, shapes_of
from wima.simulation.round import RunningMean

Reply = TypeVar("Reply")


def overhear(replies: Iterable[Reply], take: Callable[[Reply], None]) -> Iterable[Reply]:
    """Pass each reply to `take` and return the replies; an iterator is not consumed early."""

    def passing(replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            take(reply)
            yield reply

    if isinstance(replies, Iterator):
        return passing(replies)
    for reply in replies:
        take(reply)
    return replies


class Steps:
    """The model that was sent minus the weighted mean of the clients' models, in every round.

    Only a sum is kept, not the models.  It is computed from the clients' replies, or, if the
    strategy is private, from the models that it releases.  Models that do not match the one that
    was sent are left out: other arrays or non-finite numbers.  Nothing that clients send raises an
    error: what to do with their replies is for the strategy to decide.
    """

    def __init__(self, unpack: Callable[[Any], Arrays], *, released: bool) -> None:
        self._unpack, self._released = unpack, released
        self._start: Vector | None = None  # what was sent; None if it cannot be used
        self._left_out = 0

    def send(
        self, packed: Any, averaged: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Start a round with the model that clients receive.

        averaged: the arrays in the order of the vector; shapes: those of the global models.
        """
        self._start, self._left_out, self._mean = None, 0, RunningMean()
        self._averaged, self._shapes = averaged, shapes
        with suppress(Exception):  # a model that cannot be read is for the strategy to handle
            start = self._unpack(packed)
            if shapes_of(start) == shapes:
                self._start = flatten(start, averaged, torch.float64)
                self._room = torch.empty_like(self._start)  # allocated once, which is faster

    def listen(
        self, replies: Iterable[Reply], read: Callable[[Reply], tuple[Any, float] | None]
    ) -> Iterable[Reply]:
        """The replies, unchanged; each is added to the mean on the way.

        read: a client's model and its weight; None if the client failed.
        """

        def take(reply: Reply) -> None:
            try:
                returned = read(reply)
                if returned is not None:
                    self._add(self._unpack(returned[0]), float(returned[1]))
            except Exception:
                self._left_out += 1

        return replies if self._start is None or self._released else overhear(replies, take)

    def _add(self, arrays: Arrays, weight: float) -> None:
        """Add a client's model; `ValueError` if it is left out."""
        same = shapes_of(arrays) == self._shapes
        if not same or any(arrays[name].dtype.kind not in "biuf" for name in self._averaged):
            raise ValueError("other arrays than those that were sent, or not of real numbers")
        w = flatten(arrays, self._averaged, torch.float64, out=self._room)
        if not bool(torch.isfinite(w.sum())) or not 0 <= weight < inf:
            raise ValueError("the model or its weight is not finite, or the weight is negative")
        self._mean.add(w, weight)

    def end(self, t: int, arrays: Arrays) -> Vector | None:
        """The mean step of round t, given the round's model; None if there is none."""
        start, self._start = self._start, None
        if start is None:
            return None
        if self._released:
            with suppress(ValueError):
                self._add(arrays, 1.0)
        if self._left_out:
            log.warning("Round %s: replies not used to choose W: %s.", t, self._left_out)
        mean = self._mean.value
        return None if mean is None else start - mean
