"""The global models of a Flower run, plain and averaged, as named arrays.

Flower represents models as named arrays; averagers work on one vector.  Floating-point arrays are
laid out in a float32 vector, or float64 if one of them is; integer arrays keep their newest value.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch

from wima.averaging import SWA, Averager, Averages
from wima.core.errors import RunError, UsageError, check
from wima.core.vector import Layout, Vector

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
STATISTICS = ("running_mean", "running_var")  # of BatchNorm
log = logging.getLogger("flwr")  # the logger that Flower itself uses


class Models:
    """Collects the global model of every round; returns the newest one and the averages."""

    def __init__(
        self,
        averagers: Mapping[str, Averager],
        *,
        rounds: int | None = None,
        classifier: Sequence[str] = (),
        **ring: Any,
    ) -> None:
        check(bool(averagers), "averaged() needs an averager, for example WIMA(window=100).")
        parts = sorted({a.part for a in averagers.values()} - {"all"})
        if parts and not classifier:
            raise UsageError(
                f"part={parts[0]!r} needs the names of the last layer's arrays: "
                "averaged(..., classifier=['fc.weight', 'fc.bias'])."
            )
        self.averagers, self.classifier = dict(averagers), tuple(classifier)
        self.rounds = rounds  # of the run, for averagers that depend on it
        self.newest: Arrays = {}
        self.layout: Layout | None = None
        self.dtype = torch.float32  # of the vector
        self.watch: Averages | None = None
        self._initial: Arrays = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._ring = ring  # how past models are kept, see `Ring`

    @property
    def seen(self) -> int:
        """How many models have been added."""
        return self.watch.ring.count if self.watch else 0

    @property
    def begun(self) -> bool:
        """Whether any model has been seen, including the initial one."""
        return bool(self._shapes)

    def begin(self, arrays: Arrays) -> None:
        """Set the model before the first round.

        It shows which arrays are integers, since Flower's means of integers are floating-point, and
        EMA(begin="initial") starts from it.
        """
        self._initial = {name: array.copy() for name, array in arrays.items()}
        self._shapes = shapes_of(arrays)

    def has_shapes_of(self, arrays: Arrays) -> bool:
        """Whether these arrays have the names and shapes of the models."""
        return shapes_of(arrays) == self._shapes

    @property
    def averaged(self) -> list[str]:
        """The names of the arrays that are averaged, in the order of the vector."""
        if self.layout is not None:
            return list(self.layout.slices)
        return [name for name, array in self._initial.items() if _is_averaged(name, array)]

    def add(self, t: int, arrays: Arrays, fresh: Vector | None = None) -> bool:
        """Add the model of round t; returns whether it could be used.

        fresh: the clients' mean step of that round, for the arrays that are averaged.
        """
        if self.begun:
            check_same_arrays(t, self._shapes, shapes_of(arrays))
        if self.watch is None:
            self._initial = self._initial or arrays
            self.lay_out(self.averaged, arrays, self._initial)
        assert self.watch is not None and self.layout is not None
        w = flatten(arrays, self.averaged, self.dtype)
        if not bool(torch.isfinite(w).all()):
            log.warning("Round %s: the model is not finite; averages leave it out.", t)
            return False
        self.watch.update(w, None if fresh is None else self._trained(fresh))
        self.newest = {name: array.copy() for name, array in arrays.items()}
        return True

    def _trained(self, step: Vector) -> Vector | None:
        """The step in the models' dtype, without running statistics; None if it is too large.

        Running statistics have no gradient, so their entries are 0.  Torch's names identify them.
        """
        assert self.layout is not None
        step = step.to(self.dtype)
        for name, part in self.layout.unflatten(step).items():
            if name.endswith(STATISTICS):
                part.zero_()
        return step if bool(torch.isfinite(step).all()) else None

    def lay_out(self, averaged: Sequence[str], like: Arrays, initial: Arrays | None = None) -> None:
        """Fix which arrays are averaged, their places in the vector, and its dtype."""
        check(bool(averaged), "The model has no floating-point array: there is nothing to average.")
        missing = [name for name in self.classifier if name not in averaged]
        if missing:
            raise UsageError(
                f"classifier: there is no floating-point array {missing[0]!r}; "
                f"the model has {', '.join(averaged)}."
            )
        self.layout = _layout({name: like[name].shape for name in averaged}, self.classifier)
        double = any(like[name].dtype.itemsize > 4 for name in averaged)
        self.dtype = torch.float64 if double else torch.float32
        w = flatten(initial or like, averaged, self.dtype)
        averagers = {name: self._for_run(a) for name, a in self.averagers.items()}
        self.watch = Averages(averagers, w, self.layout.mask, **self._ring)
        self._initial, self._shapes = {}, shapes_of(like)

    def _for_run(self, averager: Averager) -> Averager:
        if self.rounds is not None:
            return averager.for_run(self.rounds)
        if isinstance(averager, SWA) and 0 < averager.start < 1:
            raise UsageError(
                f"SWA.start = {averager.start} is a fraction of all rounds, whose number is not "
                "known: use averaged(..., rounds=100), or give SWA the number of a round."
            )
        return averager

    def arrays(self, name: str) -> Arrays:
        """The named model: "plain", or an average; with the dtypes of the newest model."""
        if self.watch is None or self.layout is None:
            raise RunError(f"There is no model {name!r} yet: no round has been aggregated.")
        arrays = {key: array.copy() for key, array in self.newest.items()}
        if name != "plain":
            parts = self.layout.unflatten(self.watch.vector(name))
            arrays |= {key: part.numpy().astype(arrays[key].dtype) for key, part in parts.items()}
        return arrays


def check_same_arrays(
    t: int, expected: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]]
) -> None:
    """Raise `RunError` unless both models have the same names and shapes."""
    gone, fresh = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    if gone or fresh:
        change = [f"{name!r} is missing" for name in gone] + [f"{name!r} is new" for name in fresh]
        raise RunError(
            f"Round {t}: the arrays of the model have changed ({', '.join(change)}); "
            "models can only be averaged if all have the same arrays."
        )
    for name, shape in expected.items():
        if tuple(shape) != tuple(got[name]):
            raise RunError(
                f"Round {t}: array {name!r} has shape {tuple(got[name])}, before it was "
                f"{tuple(shape)}; models can only be averaged if all have the same shapes."
            )


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """Name -> shape."""
    return {name: array.shape for name, array in arrays.items()}


def _is_averaged(name: str, array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is averaged; if not, it keeps its newest value."""
    if array.dtype.kind in "iub":
        return False
    check(
        array.dtype.kind == "f" and array.dtype.itemsize <= 8,
        f"Array {name!r} is {array.dtype}; expected float16, float32, float64 or an integer.",
    )
    return True


def _layout(shapes: Mapping[str, tuple[int, ...]], classifier: tuple[str, ...]) -> Layout:
    slices, start = {}, 0
    for name, shape in shapes.items():
        slices[name] = slice(start, start + prod(shape))
        start = slices[name].stop
    return Layout(slices, dict(shapes), start, classifier)


def flatten(
    arrays: Arrays, names: Iterable[str], dtype: torch.dtype, out: Vector | None = None
) -> Vector:
    """The named arrays, concatenated; written to `out` if it is given."""
    parts = [arrays[name].ravel() for name in names]
    w = torch.empty(sum(map(len, parts)), dtype=dtype) if out is None else out
    np.concatenate(parts, out=w.numpy(), casting="unsafe")
    return w
