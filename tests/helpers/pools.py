"""Worker processes for many runs."""

from __future__ import annotations

import wima
from wima import SGD, LocalSGD, Task
from wima.simulation.engines.processes import Processes
from wima.simulation.round import Engine, Setup, first_state


class Asking(wima.Algorithm):
    """Asks for every gradient, so that there is room for them all."""

    full_gradient = "own"
    path_gradient = True


class Lasting:
    """Worker processes that outlive a run: starting one takes seconds.

    Workers are told the task, local SGD and the seed; the algorithm stays in this process.
    """

    def __init__(self, task: Task, sgd: LocalSGD, seed: int) -> None:
        setup = Setup(task, Asking(), SGD(), sgd, "examples", seed)
        self.processes = Processes(setup, first_state(setup).w, 2)

    def engine(self, setup: Setup) -> Engine:
        """An engine for one run; closing it does not end the workers."""
        return Borrowing(setup, self.processes)


class Borrowing(Engine):
    """Engine `processes`, with workers that were there before."""

    name = "processes"
    runs_ahead = True

    def __init__(self, setup: Setup, processes: Processes) -> None:
        super().__init__(setup)
        self.prefetch, self.solve = processes.prefetch, processes.solve
