"""The interface of trackers, and what they receive from a run."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from math import isnan
from typing import Any, Protocol

from wima.core.errors import UsageError
from wima.runs.run import Run
from wima.runs.settings import Settings
from wima.simulation.simulate import Record


class Tracker(Protocol):
    """Records one run in a service.

    After `start`, it receives all rounds of the run from the first, also when a run is resumed:
    those already in its folder, then the new ones.  A tracker skips the rounds that it has.
    """

    def start(self, run: Run) -> None:
        """Start recording, or resume an earlier recording of the run."""

    def record(self, record: Record) -> None:
        """Record a round."""

    def finish(self, state: str) -> None:
        """The run ended: done, interrupted, pruned, diverged or failed.  The last call."""


def needed(tracker: str, module: str, packages: str) -> Any:
    """Import a module; if that fails, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"The tracker {tracker} needs a package that cannot be imported ({error}). "
            f"Install it with `pip install {packages}`, or remove {tracker} from `trackers`."
        ) from None


def name_of(run: Run) -> str:
    """The name of its folder."""
    return run.path.resolve().name


def identity(run: Run) -> str:
    """A unique key of the run, the same whenever it is tracked."""
    about = [name_of(run), run.settings.run_id, run.environment]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def hyperparameters(settings: Settings) -> dict[str, str | float]:
    """All settings that are set, as numbers and strings; choices as on the command line."""
    return {name: _flat(value) for name, value in settings if value is not None}


def _flat(value: Any) -> str | float:
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return value if isinstance(value, int | float) else str(value)


def scalars(record: Record) -> dict[str, float]:
    """A round's numbers: `accuracy/plain`, `accuracy/wima50`, `loss/plain`, ..., `seconds`, `lr`.

    If clients were evaluated, also `clients-mean/plain`, `clients-worst/plain`, ...  Every round
    has `lr`, which comes last: once it is recorded, the round is complete.
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
