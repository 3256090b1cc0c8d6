"""Worker processes for many runs."""

from __future__ import annotations

import wima
from wima import SGD, LocalSGD, Task
from wima.simulation.engines.base import Setup, first_state
from wima.simulation.engines.processes import Processes
from wima.simulation.round import Pool


class Asking(wima.Algorithm):
    """Asks for every gradient, so that there is room for them all."""

    full_gradient = "own"
    path_gradient = True


class Lasting(Pool):
    """A pool of worker processes that outlives a run: starting one takes seconds.

    Workers are told the task, local SGD and the seed; the algorithm stays in this process.
    """

    runs_ahead = True

    def __init__(self, task: Task, sgd: LocalSGD, seed: int) -> None:
        setup = Setup(task, Asking(), SGD(), sgd, "examples", seed)
        self.pool = Processes(setup, first_state(setup).w, 2)
        self.begin, self.solve = self.pool.begin, self.pool.solve

    def close(self) -> None:
        """Not yet."""
