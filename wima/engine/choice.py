"""Engine `auto`: the fastest for this model on this machine, measured once and remembered.

So `auto` may take different engines on different machines; the record of a run names its engine.
`serial` and `processes` give the same bytes, `batched` the same up to rounding.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from wima.core.checks import is_number
from wima.core.errors import RunError, UsageError
from wima.core.machine import cores, processor
from wima.core.vector import one_thread
from wima.core.version import __version__
from wima.data.cache import cache
from wima.engine.base import Engine, Setup, first_state
from wima.storage.files import replace_text
from wima.storage.reading import read_text

Make: TypeAlias = Callable[[str, Setup], Engine]
SHORT = 2000  # steps of all clients in all rounds; below, measuring takes longer than the run
SLOW_STEP = 0.005  # seconds; arithmetic then outweighs Python, and `batched` has nothing to save
SHORT_ROUND = 0.02  # seconds; messages to workers then outweigh a second core
PROBE = 4  # steps of a trial visit
MEASURED = ("serial", "batched", "processes")
BUDGET = 0.5  # seconds of trials, at least two rounds


class Cost(NamedTuple):
    """What an engine costs."""

    startup: float  # seconds
    round: float

    def total(self, rounds: int) -> float:
        return self.startup + rounds * self.round


def choose(make: Make, setup: Setup, cohort: int, rounds: int, several: bool) -> str:
    """The name of the engine with the least time for so many rounds; several: processes allowed."""
    steps = typical_steps(setup)
    if setup.task.workspace is None or rounds * cohort * steps < SHORT:
        return "serial"
    key = fingerprint(setup, cohort, steps, several)
    costs = recall(key)
    if not costs:
        costs = measure_all(make, setup, cohort, steps, several)
        remember(key, costs)
    return min(costs, key=lambda name: costs[name].total(rounds))


def typical_steps(setup: Setup) -> int:
    """The steps of a client of mean size."""
    sgd, data = setup.sgd, setup.task.data
    mean = data.num_examples / data.num_clients
    size = mean if sgd.batch_size == "full" else sgd.batch_size
    return sgd.steps or max(1, ceil(sgd.epochs * mean / size))


def measure_all(
    make: Make, setup: Setup, cohort: int, steps: int, several: bool
) -> dict[str, Cost]:
    """The cost of each engine that may be the best; nothing but `serial` where it fails."""
    probed = min(steps, PROBE)
    probe = setup._replace(sgd=replace(setup.sgd, steps=probed))
    try:
        step = measure(make, "serial", probe, 1).round / probed
        clients = cohort if step * probed * cohort < BUDGET else min(cohort, 2 * cores())
        scale = steps / probed * cohort / clients
        found = {"serial": measure(make, "serial", probe, clients)}
        space = setup.task.workspace
        # `batched` draws dropout masks for all clients at once, so they differ from other engines'.
        if step < SLOW_STEP and space is not None and not space.random:
            with contextlib.suppress(UsageError):  # BatchNorm, or an operator unknown to vmap
                found["batched"] = measure(make, "batched", probe, clients)
        if several and found["serial"].round * scale > SHORT_ROUND:
            with contextlib.suppress(UsageError):  # a model that cannot be sent
                found["processes"] = measure(make, "processes", probe, clients)
        # Once more, all of them: a busy moment must not decide.
        again = {name: measure(make, name, probe, clients) for name in found if len(found) > 1}
    except RunError:
        return {"serial": Cost(0, 0)}  # the run itself will report what is wrong
    both = {name: (cost, again.get(name, cost)) for name, cost in found.items()}
    return {
        name: Cost(min(c.startup for c in costs), scale * min(c.round for c in costs))
        for name, costs in both.items()
    }


def measure(make: Make, name: str, probe: Setup, clients: int) -> Cost:
    """Rounds of the first clients: the least time of one."""
    begin = time.perf_counter()
    engine = make(name, probe)
    startup, least, cohort = time.perf_counter() - begin, float("inf"), list(range(clients))
    begin, t = time.perf_counter(), 0
    try:
        with one_thread():
            while t < 2 or (time.perf_counter() - begin < BUDGET and t < 20):
                state = first_state(probe)
                before = time.perf_counter()
                engine.round(state, t, cohort, lr=1e-3)
                least, t = min(least, time.perf_counter() - before), t + 1
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


def recall(key: str) -> dict[str, Cost]:
    """The costs measured before, if any; the file may be anybody's."""
    try:
        costs = {name: Cost(*cost) for name, cost in _read()[key].items()}
    except (KeyError, TypeError, AttributeError):
        return {}
    known = all(name in MEASURED and all(map(is_number, cost)) for name, cost in costs.items())
    return costs if known else {}


def remember(key: str, costs: dict[str, Cost]) -> None:
    """Keep the costs in the cache, if that can be written."""
    known = {**_read(), key: costs}
    with contextlib.suppress(RunError):
        replace_text(_file(), json.dumps(known))


def _file() -> Path:
    return cache() / "engines.json"


def _read() -> dict[str, dict[str, list[float]]]:
    try:
        known = json.loads(read_text(_file()))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
