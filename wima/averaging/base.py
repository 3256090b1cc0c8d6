"""Averagers watch the sequence of global models and never steer it.

An averager is a frozen dataclass with `init`, `update` and `value`.  Those that look back ask for a
`history` of that many earlier models and read it from `past`, which all of them share.
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
        """The model n updates before the one that is coming in; 1 is the newest."""
        ...

    def as_stored(self, w: Vector) -> Vector:
        """w as `ago` will give it back: itself, unless past models are kept in less precision."""
        ...


class Averager:
    """The base of all averagers: what is averaged, and the name of the result.

    part: "all"; "classifier" or "features" take that part from the average and the other one from
    the newest model.  Subclasses are frozen dataclasses; those with parts have it as a field.

    Examples:
        >>> import torch, wima
        >>> from wima.averaging import Watch
        >>> class MeanOfAll(wima.Averager):
        ...     def init(self, w):
        ...         return torch.zeros_like(w), 0
        ...     def update(self, state, w, past):
        ...         return state[0] + w, state[1] + 1
        ...     def value(self, state):
        ...         return state[0] / max(1, state[1])
        >>> watch = Watch({"mean": MeanOfAll()}, w=torch.zeros(1))
        >>> for value in (1.0, 2.0, 6.0):
        ...     watch.update(torch.tensor([value]))
        >>> watch.vectors()["mean"]
        tensor([3.])
    """

    part: str = "all"

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
    def judges(self) -> bool:
        """Whether `judge` is to be called."""
        return False

    @property
    def history(self) -> int:
        """How many earlier models `update` looks back at."""
        return 0

    def for_run(self, rounds: int) -> Averager:
        """Itself, with what depends on the length of the run filled in and checked."""
        return self

    def memory(self, w: Vector, rounds: int) -> int:
        """The largest size of its state in a run of that length, in bytes."""
        return size(self.init(w))

    def init(self, w: Vector) -> AverageState:
        """The state before the first model; w is the initial model, which is never averaged."""
        raise NotImplementedError

    def judge(self, state: AverageState, fresh: Vector) -> AverageState:
        """The state after a round in which clients trained from the newest model.

        fresh: the mean of what their own gradients added up to, of the length of the trained part.
        """
        return state

    def used(self, state: AverageState) -> int | None:
        """How many models the average is of, if that is not in its name."""
        return None

    def update(self, state: AverageState, w: Vector, past: Past) -> AverageState:
        """The state after model w; may reuse the memory of the old state, never that of w."""
        raise NotImplementedError

    def value(self, state: AverageState) -> Vector:
        """The average, as a vector of the models' dtype."""
        raise NotImplementedError
