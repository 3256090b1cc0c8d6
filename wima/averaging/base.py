"""Averagers watch the sequence of global models and never steer it.

An averager is a frozen dataclass with `init`, `update` and `value`.  If it needs earlier models,
`history` is their number, and it reads them from the ring `past`, which all averagers share:
`past.ago(n)` is the model n updates before the current one, and `past.as_stored(w)` is w as `ago`
will return it, rounded if past models are kept in lower precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wima.core.errors import UsageError, check, check_one_of
from wima.core.vector import PARTS, Vector
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import Json, decode, encode, size

AverageState: TypeAlias = Any
NAME = re.compile(r"(?!\.)[\w .,:;=+@%~()\[\]-]{1,100}")  # of a file in the run's folder, too


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
        check_one_of(f"{kind}.part", self.part, PARTS)

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

    def update(self, state: AverageState, w: Vector, past: Ring) -> AverageState:
        """The state after model w; may reuse the memory of the old state, never that of w."""
        raise NotImplementedError

    def value(self, state: AverageState) -> Vector:
        """The average, as a vector of the models' dtype."""
        raise NotImplementedError


@dataclass(frozen=True)
class Last(Averager):
    """The newest global model itself; the column "plain" of every run."""

    def _label(self) -> str:
        return "plain"

    def init(self, w: Vector) -> Vector:
        return w

    def update(self, state: Vector, w: Vector, past: Ring) -> Vector:
        return w

    def value(self, state: Vector) -> Vector:
        return state


class Averages:
    """Feeds every model to every averager; `vectors()` are the models to evaluate, by name.

    The newest model is always included, as "plain".  ring: how past models are kept, see `Ring`.
    """

    def __init__(
        self,
        averagers: Mapping[str, Averager],
        w: Vector,
        mask: Callable[[str], Tensor] | None = None,
        **ring: Any,
    ) -> None:
        check("plain" not in averagers, "'plain' is reserved for the model without averaging.")
        for name in averagers:
            check(
                isinstance(name, str) and bool(NAME.fullmatch(name)),
                f"{name!r:.120} cannot name an average: use 1 to 100 letters, digits, spaces and "
                "any of . _ - + = , : ; @ % ~ ( ) [ ], and do not begin with a dot.",
            )
        self.averagers = {"plain": Last(), **averagers}
        parts = {a.part for a in averagers.values()} - {"all"}
        if parts and mask is None:
            raise UsageError(f"part={parts.pop()!r} needs a model whose layers are known.")
        self._masks = {part: mask(part).to(w.device) for part in parts} if mask else {}
        self._rules = {name: averager.rule() for name, averager in self.averagers.items()}
        self.states = {name: rule.init(w) for name, rule in self._rules.items()}
        self.ring = Ring(max(rule.history for rule in self._rules.values()), w, **ring)

    def update(self, w: Vector, gradient: Vector | None = None) -> None:
        """Take in the next model; w is never changed, and kept only as "plain".

        gradient: the sum of the clients' own gradients in the round that produced w, for averagers
        that need it; see `Averager.use_gradient`.
        """
        for name, rule in self._rules.items():
            with _unchanged(name, w, gradient):
                if rule.needs_gradient and gradient is not None:
                    self.states[name] = rule.use_gradient(self.states[name], gradient)
                self.states[name] = rule.update(self.states[name], w, self.ring)
        self.ring.push(w)

    def encode(self, tensors: dict[str, Tensor], rings: dict[str, Ring]) -> Json:
        """The averagers' states as JSON; adds their tensors and rings to the dicts."""
        rings["past"] = self.ring
        return {
            name: encode(s, f"average {name}", tensors, rings) for name, s in self.states.items()
        }

    def load(
        self, saved: Mapping[str, Any], store: Segments, tensor: Callable[[str], Tensor]
    ) -> None:
        """Restore what `encode` and `manifests.save` wrote; tensor: name -> stored tensor."""
        rings: dict[str, Ring] = {}
        self.encode({}, rings)  # finds the rings of averagers
        for name, ring in rings.items():
            ring.load(store, saved["rings"][name]["segments"], saved["rings"][name]["count"])
        for name, like in self.states.items():
            self.states[name] = decode(saved["averages"][name], like, tensor, rings)

    def vector(self, name: str) -> Vector:
        """The named model."""
        part = self.averagers[name].part
        with _unchanged(name, self.states["plain"]):
            value = self._rules[name].value(self.states[name])
        if part == "all":
            return value
        return torch.where(self._masks[part], value, self.states["plain"])

    def used(self) -> dict[str, int]:
        """The number of models in each average whose name does not say it."""
        windows = {name: rule.used(self.states[name]) for name, rule in self._rules.items()}
        return {name: window for name, window in windows.items() if window is not None}

    def vectors(self) -> dict[str, Vector]:
        """All models by name."""
        return {name: self.vector(name) for name in self.averagers}


@contextmanager
def _unchanged(name: str, *watched: Vector | None) -> Iterator[None]:
    """Raise if the averager writes to these vectors, with which training goes on."""
    normal = [w for w in watched if w is not None and not w.is_inference()]  # others count nothing
    before = [w._version for w in normal]
    yield
    if [w._version for w in normal] != before:
        raise UsageError(
            f"The averager {name!r} changed the model or the gradient in place, which would change "
            "training: averagers must work on copies (write `state = state + w`, or w.clone())."
        )


def named(averagers: Averager | Sequence[Averager] | Mapping[str, Averager]) -> dict[str, Averager]:
    """One or several averagers by the name of their column; names must be unique."""
    if isinstance(averagers, Mapping):
        return dict(averagers)
    averagers = [averagers] if isinstance(averagers, Averager) else averagers
    names = [a.name for a in averagers]
    twice = {name for name in names if names.count(name) > 1}
    check(not twice, f"Two averagers are called {', '.join(sorted(twice))}; give them as a dict.")
    return dict(zip(names, averagers, strict=True))
