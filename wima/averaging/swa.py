"""SWA: the mean of every c-th model, starting late in the run."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch

from wima.averaging.base import Averager
from wima.core.errors import Phase, check_count, check_one_of, check_start, start_round
from wima.core.vector import Vector
from wima.storage.ring import Ring


class SWAState(NamedTuple):
    mean: Vector  # float64
    collected: int
    t: int  # models seen
    dtype: torch.dtype


@dataclass(frozen=True)
class SWA(Averager):
    """The mean of the models of every `cycle`-th round after `start`.

    Until `start` it is the newest model; then it is the model of `start` until the first collected
    model replaces it.  With t = 0 for the first round:

        fedsam:    collects after round t if t > start and (t - start) % cycle == 0
        izmailov:  collects after round t if (t + 1 - start) % cycle == 0, when the rate is lowest

    Izmailov et al., Averaging Weights Leads to Wider Optima (UAI 2018); in federated learning:
    Caldarola et al. (ECCV 2022).  Its cyclic rate is a schedule of the run, see `Cyclic`.
    """

    start: float = 0.75  # a round, or a share of all rounds if less than 1
    cycle: int = 10
    phase: Phase = "fedsam"
    part: str = "all"

    def __post_init__(self) -> None:
        check_start("SWA.start", self.start)
        check_count("SWA.cycle", self.cycle)
        check_one_of("SWA.phase", self.phase, ("fedsam", "izmailov"))
        super().__post_init__()

    def _label(self) -> str:
        start = "" if self.start == SWA.start else f"-s{self.start:g}"
        cycle = "" if self.cycle == SWA.cycle else f"-c{self.cycle}"
        return f"swa{start}{cycle}" + ("" if self.phase == SWA.phase else f"-{self.phase}")

    def for_run(self, rounds: int) -> Self:
        return replace(self, start=start_round("SWA.start", self.start, rounds))

    def init(self, w: Vector) -> SWAState:
        return SWAState(w.to(torch.float64, copy=True), 0, 0, w.dtype)

    def update(self, state: SWAState, w: Vector, past: Ring) -> SWAState:
        t, n = state.t, state.collected
        if t < self.start:
            state.mean.copy_(w)
        elif self._collects(t):
            if n == 0:  # drop the placeholder for the first model
                state.mean.copy_(w)
            else:
                state.mean.add_((w - state.mean) / (n + 1))
            n += 1
        return state._replace(collected=n, t=t + 1)

    def _collects(self, t: int) -> bool:
        if self.phase == "fedsam":
            return t > self.start and (t - self.start) % self.cycle == 0
        return (t + 1 - self.start) % self.cycle == 0

    def value(self, state: SWAState) -> Vector:
        return state.mean.to(state.dtype, copy=True)
