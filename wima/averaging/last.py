"""No average: the newest model."""

from __future__ import annotations

from dataclasses import dataclass

from wima.averaging.base import Averager, Past
from wima.core.vector import Vector


@dataclass(frozen=True)
class Last(Averager):
    """The newest global model itself; the column "plain" of every run.

    Examples:
        >>> import torch, wima
        >>> from wima.averaging import Watch
        >>> watch = Watch({"mean": wima.Last()}, w=torch.zeros(1))
        >>> for value in (1.0, 2.0, 4.0):
        ...     watch.update(torch.tensor([value]))
        >>> watch.vectors()["mean"]  # the newest
        tensor([4.])
    """

    def _label(self) -> str:
        return "plain"

    def init(self, w: Vector) -> Vector:
        return w

    def update(self, state: Vector, w: Vector, past: Past) -> Vector:
        return w

    def value(self, state: Vector) -> Vector:
        return state
