"""Engine `auto`: the fastest for this model on this machine, measured once and remembered.

Trials take at most 3 s or 2 % of the run, whichever is more: the cheapest one comes first and shows
how long the run will be.  A trial that would not fit into the remaining time is left to a longer
run.

So `auto` may choose different engines on different machines; the record of a run names its engine.
`serial` and `processes` give the same bytes, `batched` the same up to rounding.
"""

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter as clock
from typing import Any, NamedTuple, TypeAlias

import torch

from wima.core.errors import RunError, UsageError, is_number, unknown
from wima.core.machine import cores, processor
from wima.core.vector import Vector, one_thread
from wima.core.version import __version__
from wima.data.cache import cache
from wima.simulation.engines import NAMES
from wima.simulation.engines.processes import Processes
from wima.simulation.options import RunOptions
from wima.simulation.reference import Reference
from wima.simulation.round import Engine, Serial, Setup, first_state
from wima.storage.files import read_text, replace_text

Make: TypeAlias = Callable[[str, Setup], Engine]
MEASURED = ("serial", "batched", "processes")
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


def choose(make: Make, setup: Setup, cohort: int, rounds: int, several: bool) -> tuple[str, str]:
    """The fastest engine for this number of rounds, and why; several: processes are allowed."""
    sgd, mean = setup.sgd, setup.task.data.num_examples / setup.task.data.num_clients
    size = mean if sgd.batch_size == "full" else sgd.batch_size
    steps = sgd.steps or max(1, ceil(sgd.epochs * mean / size))  # of a client of average size
    if setup.task.workspace is None:
        return "serial", "the only one for a task made of functions"
    if rounds * cohort * steps < SHORT:
        return "serial", f"fewer than {SHORT:,} client steps, not worth a trial"
    key, begin = fingerprint(setup, cohort, steps, several), clock()
    known = recall(key)
    trials = Trials(
        make=make,
        setup=setup,
        cohort=cohort,
        steps=steps,
        full_gradient=mean / size if setup.algorithm.full_gradient != "none" else 0.0,
        rounds=rounds,
        several=several,
        costs={name: cost for name, cost in known.items() if cost is not None},
        postponed=[name for name, cost in known.items() if cost is None],
    )
    try:
        trials.run()
    except RunError:
        return "serial", "a trial failed"  # the run itself will report what is wrong
    took = "measured before"
    if trials.ran:
        remember(key, {**trials.costs, **dict.fromkeys(trials.postponed)})
        took = f"trials took {_in_words(clock() - begin)}"
    if trials.postponed:
        took += f"; no time to try {', '.join(trials.postponed)}"
    totals = {name: cost.total(rounds) for name, cost in trials.costs.items()}
    estimates = ", ".join(f"{name} {_in_words(total)}" for name, total in totals.items())
    return min(totals, key=totals.__getitem__), f"estimated time to train: {estimates} ({took})"


def _in_words(seconds: float) -> str:
    for unit, much in (("h", 3600), ("min", 60)):
        if seconds >= much:
            return f"{seconds / much:.1f} {unit}"
    return f"{seconds:.1f} s"


@dataclass(kw_only=True)
class Trials:
    """Trial rounds with each engine that may be the fastest, until their time is used up."""

    make: Make
    setup: Setup
    cohort: int
    steps: int  # of a visit
    full_gradient: float  # the steps that a visit's full gradient counts as: an epoch, or none
    rounds: int
    several: bool
    costs: dict[str, Cost]  # of the run's rounds
    postponed: list[str]  # for lack of time
    begin: float = field(default_factory=lambda: clock())
    ran: bool = False

    def run(self) -> None:
        """Complete `costs` as far as time allows."""
        if not self.costs:
            self._measure("serial", 1, 1)  # shows what a step costs, and thus the run
            self._try("serial")
            # `batched` draws dropout masks for all clients at once: they differ from the others'.
            space = self.setup.task.workspace
            if self._step() < SLOW_STEP and space is not None and not space.random:
                self.postponed.append("batched")
            if self.several and self.costs["serial"].round > SHORT_ROUND:
                self.postponed.append("processes")
        self.postponed = [name for name in self.postponed if not self._try(name)]

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


def fingerprint(setup: Setup, cohort: int, steps: int, several: bool) -> str:
    """What the costs depend on: model, work, machine and versions."""
    space, data = setup.task.workspace, setup.task.data
    assert space is not None and setup.task.layout is not None
    model = (str(space.module), sorted(setup.task.layout.shapes.items()))
    work = (data.x.shape[1:], str(data.x.dtype), str(setup.sgd), cohort, steps, several)
    machine = (processor(), cores(), platform.platform())
    versions = (torch.__version__, __version__, platform.python_version())
    return hashlib.sha256(
        repr((model, work, setup.algorithm, machine, versions)).encode()
    ).hexdigest()


def recall(key: str) -> dict[str, Cost | None]:
    """The costs measured before, None for postponed trials; the file is not trusted."""
    entry = _read().get(key)
    costs: dict[str, Cost | None] = {}
    for name, cost in entry.items() if isinstance(entry, dict) else ():
        numbers = isinstance(cost, list) and len(cost) == 2 and all(map(is_number, cost))
        if name not in MEASURED or not (cost is None or numbers):
            return {}
        costs[name] = None if cost is None else Cost(*cost)
    return costs if costs.get("serial") else {}


def remember(key: str, costs: dict[str, Cost | None]) -> None:
    """Keep the costs in the cache, if it is writable."""
    with suppress(RunError):
        replace_text(cache() / "engines.json", json.dumps({**_read(), key: costs}))


def _read() -> dict[str, Any]:
    try:
        entries = json.loads(read_text(cache() / "engines.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


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
