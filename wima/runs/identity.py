"""The identity of a run: the settings, data, engine and versions that determine its bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from wima.core.errors import UsageError
from wima.runs.environment import environment
from wima.runs.folder import Run
from wima.runs.own_code import is_own, source
from wima.runs.ranks import arithmetic, engine_of
from wima.runs.settings import CHOICES, Settings
from wima.simulation.simulate import Simulation
from wima.storage.files import digest
from wima.storage.manifests import Saved

VERSIONS, FACTS = ("wima", "torch", "numpy"), ("engine", "data_checksum", "noise")


def identity_of(settings: Settings, simulation: Simulation) -> dict[str, Any]:
    """What must be the same for a run to resume to the same bytes."""
    around = {**environment(), **simulation.facts()}
    around["engine"] = engine_of(simulation.engine, settings)
    return {**settings.in_results(), **{n: around[n] for n in (*VERSIONS, *FACTS) if n in around}}


def check_same(run: Run, found: Sequence[Saved], now: dict[str, Any]) -> None:
    """Refuse to resume to a different result.  Before the first checkpoint, compare the folder."""
    at_first = {name: run.environment.get(name) for name in (*VERSIONS, *FACTS)}
    if at_first["engine"] is not None:
        at_first["engine"] = engine_of(at_first["engine"], run.settings)
    then = found[0].identity if found else {n: v for n, v in at_first.items() if v is not None}
    differ = [
        f"{name}: {value!r} then, {now.get(name)!r} now"
        for name, value in sorted(then.items())
        if value != json.loads(json.dumps(now.get(name)))
        and not (name == "engine" and arithmetic(value) == arithmetic(now[name]))
    ]
    if not found and run.settings.run_id != run.status.get("settings", run.settings.run_id):
        differ.append("settings.toml was changed")
    if differ:
        raise UsageError(
            f"The run in {run.path} was started with different settings, data or versions, so it "
            "cannot be resumed to the same result:\n  " + "\n  ".join(differ) + "\nRestore what "
            f"changed, or start a new run: `wima run {run.path / 'settings.toml'} --out ...`."
        )


def own_names(settings: Settings) -> list[str]:
    """The names in settings that refer to a user's own code."""
    choices = [*(getattr(settings, key) for key in CHOICES), *settings.averagers]
    return [choice.name for choice in choices if choice and is_own(choice.name)]


def own_code(settings: Settings) -> dict[str, dict[str, str]]:
    """Checksums of the files that a user's own code was loaded from, by name."""
    loaded = {name: source(name) for name in own_names(settings)}
    sums = {name: digest(path) for name, path in loaded.items() if path is not None}
    return {"own_code": sums} if sums else {}


def remarks_on(run: Run) -> list[str]:
    """Changes since the run started that do not prevent resuming it."""
    here = environment()
    then = {**here, **run.environment}
    there, this = (f"{e['processor']} with {e['instructions']}" for e in (then, here))
    processor = (
        f"The run started on another processor ({there}; here: {this}). From here on, records and "
        "models match those of the other processor up to rounding, not bit by bit."
    )
    before, now = run.environment.get("own_code"), own_code(run.settings).get("own_code", {})
    changed = [name for name, total in now.items() if before and before.get(name) != total]
    code = f"The code of {', '.join(changed)} has changed; the remaining rounds use the new code."
    return [processor] * (there != this) + [code] * bool(changed)
