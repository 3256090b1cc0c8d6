"""What a tracker is, and how a run looks to all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import import_module
from math import isnan, nan
from typing import Any, Protocol

from wima.core.errors import UsageError
from wima.runs.folder import Run, seconds_of
from wima.runs.records import from_line
from wima.runs.settings import Settings
from wima.simulation.simulation import Record


class Tracker(Protocol):
    """Records one run somewhere.

    After `start` come all rounds of the run from the first on, also when a run is resumed: those
    that are in its folder already, then the new ones.  A tracker leaves out what it has.
    """

    def start(self, run: Run) -> None:
        """Begin, or resume what was begun before."""

    def record(self, record: Record) -> None:
        """A round, as it happened."""

    def finish(self, state: str) -> None:
        """The run ended: done, interrupted, pruned, diverged or failed.  Nothing follows."""


def needed(tracker: str, module: str, packages: str) -> Any:
    """The module, imported; if it cannot be, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"The tracker {tracker} needs a package that cannot be imported ({error}). "
            f"Install it with `pip install {packages}`, or leave {tracker} out of `trackers`."
        ) from None


def name_of(run: Run) -> str:
    """The name of its folder."""
    return run.path.resolve().name


def identity(run: Run) -> str:
    """A key of the run: the same whenever it is tracked, and of no other run."""
    about = [name_of(run), run.settings.run_id, run.environment]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def hyperparameters(settings: Settings) -> dict[str, str | float]:
    """All settings that are set, as numbers and texts; choices as on the command line."""
    return {name: _flat(value) for name, value in settings if value is not None}


def _flat(value: Any) -> str | float:
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return value if isinstance(value, int | float) else str(value)


def scalars(record: Record) -> dict[str, float]:
    """A round's numbers: `accuracy/plain`, `accuracy/wima50`, `loss/plain`, ..., `seconds`, `lr`.

    Where clients were evaluated, also `clients-mean/plain`, `clients-worst/plain`, ...  Every round
    has `lr`, and it comes last: where it is recorded, the round is complete.
    """
    metrics = {
        f"{metric}/{model}": value
        for model, values in record.metrics.items()
        for metric, value in values.items()
    }
    clients = {
        f"clients-{name}/{model}": values[name]
        for model, values in record.clients.items()
        for name in ("mean", "worst")
    }
    seconds = {} if isnan(record.seconds) else {"seconds": record.seconds}
    return {**metrics, **clients, **seconds, "lr": record.lr}


def recorded(run: Run) -> Iterator[Record]:
    """The rounds in a run's folder, as they were when they happened."""
    seconds = seconds_of(run.path)
    for line in run.records:
        yield from_line({"cohort": [], "lr": None, **line}, seconds.get(line["t"], nan))
