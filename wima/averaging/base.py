"""Averagers watch the sequence of global models and never steer it.

An averager is a frozen dataclass with `init`, `update` and `value`.  If it needs earlier models,
`history` is their number, and it reads them from `past`, which all averagers share.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from wima.core.errors import check
from wima.core.vector import PARTS, Vector
from wima.storage.states import size

AverageState: TypeAlias = Any


class Past(Protocol):
    """The models seen so far."""

    def ago(self, n: int) -> Vector:
        """The model n updates before the current one; 1 is the newest."""
        ...

    def as_stored(self, w: Vector) -> Vector:
        """w as `ago` will return it: rounded if past models are kept in lower precision."""
        ...


class Averager:
    """The base of all averagers: what is averaged, and the name of the result.

    part: "all"; "classifier" and "features" take that part from the average and the rest from the
    newest model.  Subclasses are frozen dataclasses; those that support parts have it as a field.

    Examples:
        >>> import torch, wima
        >>> from wima.averaging import Averages
        >>> class MeanOfAll(wima.Averager):
        ...     def init(self, w):
        ...         return torch.zeros_like(w), 0
        ...     def update(self, state, w, past):
        ...         return state[0] + w, state[1] + 1
        ...     def value(self, state):
        ...         return state[0] / max(1, state[1])
        >>> averages = Averages({"mean": MeanOfAll()}, w=torch.zeros(1))
        >>> for value in (1.0, 2.0, 6.0):
        ...     averages.update(torch.tensor([value]))
        >>> averages.vectors()["mean"]
        tensor([3.])
    """

    part: str = "all"
    needs_gradient = False  # whether `use_gradient` must be called

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check(
            self.part in PARTS,
            f"{kind}.part must be one of {', '.join(PARTS)}, got {self.part!r}.",
        )

    @property
    def name(self) -> str:
        """The name of its column in records and tables."""
        return self._label() + ("" if self.part == "all" else f"-{self.part}")

    def _label(self) -> str:
        return type(self).__name__.lower()

    @property
    def history(self) -> int:
        """How many earlier models `update` reads."""
        return 0

    def for_run(self, rounds: int) -> Averager:
        """The averager with everything that depends on the run's length filled in and checked."""
        return self

    def rule(self) -> Averager:
        """The averager that does the work, if options choose one; it has the methods below."""
        return self

    def memory(self, w: Vector, rounds: int) -> int:
        """The largest size of its state in a run of that length, in bytes."""
        return size(self.init(w))

    def init(self, w: Vector) -> AverageState:
        """The state before the first model; w is the initial model, which is never averaged."""
        raise NotImplementedError

    def use_gradient(self, state: AverageState, gradient: Vector) -> AverageState:
        """The state after a round in which clients trained from the newest model.

        gradient: the mean over clients of the sum of their own gradients, for the trained part of
        w.
        """
        return state

    def used(self, state: AverageState) -> int | None:
        """The number of averaged models, if the name does not say it."""
        return None

    def update(self, state: AverageState, w: Vector, past: Past) -> AverageState:
        """The state after model w; may reuse the memory of the old state, never that of w."""
        raise NotImplementedError

    def value(self, state: AverageState) -> Vector:
        """The average, as a vector of the models' dtype."""
        raise NotImplementedError
