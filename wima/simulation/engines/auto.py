"""Engine `auto`: the fastest for this model on this machine, measured before the first round.

The cheapest trial comes first and shows how long the run will be, and thus how long trials may
take.  What was measured is kept for the next runs of this process, as in a sweep.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter as clock
from typing import NamedTuple, TypeAlias

from wima.core.errors import RunError, UsageError, unknown
from wima.core.machine import cores
from wima.core.vector import Vector, one_thread
from wima.simulation.engines import NAMES
from wima.simulation.engines.processes import Processes
from wima.simulation.options import RunOptions
from wima.simulation.reference import Reference
from wima.simulation.round import Engine, Serial, Setup, first_state

Make: TypeAlias = Callable[[str, Setup], Engine]
SHORT = 2000  # steps of all clients in all rounds; for fewer, measuring takes longer than the run
SLOW_STEP = 0.005  # seconds; above, arithmetic outweighs Python, and `batched` saves nothing
SHORT_ROUND = 0.02  # seconds; below, messages to workers cost more than a second core gains
PROBE = 4  # steps of a trial visit
TRIAL = 0.3  # seconds per trial, of at least two rounds
LEAST = 3.0  # seconds for all trials, however short the run is
SHARE = 0.02  # of the run's time, if that is more
START = 1.5  # seconds that trials allow for the start of workers


class Cost(NamedTuple):
    """The time an engine takes."""

    startup: float  # seconds
    round: float

    def total(self, rounds: int) -> float:
        return self.startup + rounds * self.round


# The engines' costs for a model and its work, and the engines that there was no time to try.
MEASURED: dict[str, tuple[dict[str, Cost], list[str]]] = {}


def choose(make: Make, setup: Setup, cohort: int, rounds: int, several: bool) -> tuple[str, str]:
    """The fastest engine for this number of rounds, and why; several: processes are allowed."""
    sgd, mean = setup.sgd, setup.task.data.num_examples / setup.task.data.num_clients
    size = mean if sgd.batch_size == "full" else sgd.batch_size
    steps = sgd.steps or max(1, ceil(sgd.epochs * mean / size))  # of a client of average size
    if setup.task.workspace is None:
        return "serial", "the only one for a task made of functions"
    if rounds * cohort * steps < SHORT:
        return "serial", f"fewer than {SHORT:,} client steps, not worth a trial"
    data, layout, begin = setup.task.data, setup.task.layout, clock()
    model = (str(setup.task.workspace.module), layout and layout.shapes)
    work = (data.x.shape[1:], data.x.dtype, sgd, setup.algorithm, cohort, steps, several)
    costs, postponed = MEASURED.setdefault(repr((model, work)), ({}, []))
    trials = Trials(make, setup, costs, rounds, cohort, steps)
    if setup.algorithm.full_gradient != "none":
        trials.full_gradient = mean / size
    try:
        trials.run(postponed, several)
    except RunError:
        costs.clear()
        return "serial", "a trial failed"  # the run itself will report what is wrong
    took = f"trials took {_in_words(clock() - begin)}" if trials.ran else "measured before"
    if postponed:
        took += f"; no time to try {', '.join(postponed)}"
    totals = {name: cost.total(rounds) for name, cost in costs.items()}
    estimates = ", ".join(f"{name} {_in_words(total)}" for name, total in totals.items())
    return min(totals, key=totals.__getitem__), f"estimated time to train: {estimates} ({took})"


def _in_words(seconds: float) -> str:
    for unit, much in (("h", 3600), ("min", 60)):
        if seconds >= much:
            return f"{seconds / much:.1f} {unit}"
    return f"{seconds:.1f} s"


@dataclass
class Trials:
    """Trial rounds with each engine that may be the fastest, until their time is used up."""

    make: Make
    setup: Setup
    costs: dict[str, Cost]  # of the run's rounds
    rounds: int
    cohort: int
    steps: int  # of a visit
    full_gradient: float = 0.0  # the steps that a visit's full gradient counts as: an epoch
    begin: float = field(default_factory=lambda: clock())
    ran: bool = False

    def run(self, postponed: list[str], several: bool) -> None:
        """Complete `costs`; the engines that there is no time for stay in `postponed`."""
        if not self.costs:
            self._measure("serial", 1, 1)  # shows what a step costs, and thus the run
            self._try("serial")
            # `batched` draws dropout masks for all clients at once: they differ from the others'.
            space = self.setup.task.workspace
            if self._step() < SLOW_STEP and space is not None and not space.random:
                postponed.append("batched")
            if several and self.costs["serial"].round > SHORT_ROUND:
                postponed.append("processes")
        postponed[:] = [name for name in postponed if not self._try(name)]

    def _try(self, name: str) -> bool:
        """Run a trial of the usual size; False: there is no time."""
        # If steps are slow, a few of them are enough for a trial.
        clients, steps = self.cohort, min(self.steps, PROBE)
        if clients * (steps + self.full_gradient) * self._step() >= TRIAL:
            clients = min(clients, 2 * cores())
            steps = max(1, min(steps, int(TRIAL / (clients * self._step()))))
        expected = 2 * clients * (steps + self.full_gradient) * self._step()  # two rounds
        if name == "processes":
            expected = START + expected / min(cores(), self.cohort)
        if clock() + expected > self._limit():
            return False
        # The engine may refuse BatchNorm, an operator unknown to vmap, a model that cannot be sent.
        with suppress(UsageError):
            self._measure(name, clients, steps)
        return True

    def _measure(self, name: str, clients: int, steps: int) -> None:
        """Run trial rounds; convert their time to the clients and steps of the run."""
        self.ran = True
        probe = self.setup._replace(sgd=replace(self.setup.sgd, steps=steps))
        cost = measure(self.make, name, probe, clients, self._limit())
        run = self.cohort * (self.steps + self.full_gradient)
        scale = run / (clients * (steps + self.full_gradient))
        self.costs[name] = Cost(cost.startup, scale * cost.round)

    def _step(self) -> float:
        """The seconds per step."""
        return self.costs["serial"].round / (self.cohort * (self.steps + self.full_gradient))

    def _limit(self) -> float:
        """When the trials must end, judging by the fastest engine so far."""
        totals = [cost.total(self.rounds) for cost in self.costs.values()]
        return self.begin + max(LEAST, SHARE * min(totals, default=0.0))


def measure(make: Make, name: str, probe: Setup, clients: int, limit: float) -> Cost:
    """The time of the fastest of two or more rounds with the first clients, until the limit."""
    begin = clock()
    engine = make(name, probe)
    startup, least, cohort = clock() - begin, float("inf"), list(range(clients))
    end, t = min(limit, clock() + TRIAL), 0
    try:
        with one_thread():
            while t < 2 or (clock() < end and t < 20):
                state = first_state(probe)
                before = clock()
                engine.round(state, t, cohort, lr=1e-3)
                least, t = min(least, clock() - before), t + 1
    finally:
        engine.close()
    return Cost(startup, least)


MakeEngine: TypeAlias = Callable[[Setup], Engine]


def make_engine(options: RunOptions, setup: Setup, w: Vector, models: int = 1) -> Engine:
    """The engine that the options name.  models: how many are evaluated at a time."""
    workers, cohort = options.workers, options.clients_per_round

    def make(name: str, setup: Setup) -> Engine:
        if name == "reference":
            return Reference(setup)
        if name == "serial":
            return Serial(setup)
        if name == "processes":
            return Processes(setup, w, workers or min(cores(), cohort), models)
        if name == "batched":
            from wima.simulation.engines.batched import Batched  # torch.func is slow to import

            return Batched(setup, w)
        if name == "distributed":
            from wima.simulation.engines.ranks import distributed  # so is torch.distributed

            return distributed(setup, w)
        raise unknown("engine", name, NAMES)

    if options.engine != "auto":
        return make(options.engine, setup)
    if w.device.type != "cpu":  # on a GPU, `batched` if possible
        try:
            return make("batched", setup)
        except UsageError:
            return make("serial", setup)
    if workers and workers > 1:  # explicitly requested
        return make("processes", setup)
    several = workers is None and min(cores(), cohort) > 1
    name, why = choose(make, setup, cohort, options.rounds, several)
    engine = make(name, setup)
    engine.why = why
    return engine
