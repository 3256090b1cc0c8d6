"""LAWA: the mean of the last k models, collected every c-th round."""

from dataclasses import dataclass
from typing import NamedTuple

from wima.averaging.base import Averager
from wima.averaging.wima import Window, WindowSum
from wima.core.errors import check_count
from wima.core.vector import Vector
from wima.storage.ring import Ring


class LAWAState(NamedTuple):
    window: WindowSum
    ring: Ring  # its own: the collected models are not the last ones
    t: int  # models seen


@dataclass(frozen=True)
class LAWA(Averager):
    """The mean of the last k models, collected every `every` rounds.

    Until the first one is collected, it is the newest model.  every = 1 is WIMA with a window of k.
    Kaddour, Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight
    Averaging (2022).
    """

    k: int = 10
    every: int = 10
    part: str = "all"

    def __post_init__(self) -> None:
        check_count("LAWA.k", self.k)
        check_count("LAWA.every", self.every)
        super().__post_init__()

    def _label(self) -> str:
        return f"lawa{self.k}x{self.every}"

    def init(self, w: Vector) -> LAWAState:
        return LAWAState(Window(self.k).init(w), Ring(self.k, w), 0)

    def update(self, state: LAWAState, w: Vector, past: Ring) -> LAWAState:
        window, t = state.window, state.t + 1
        if t % self.every == 0:
            window = Window(self.k).update(window, w, state.ring)
            state.ring.push(w)
        elif window.seen == 0:
            window.total.copy_(w)
        return LAWAState(window, state.ring, t)

    def value(self, state: LAWAState) -> Vector:
        return Window(self.k).value(state.window)
