"""Settings of a run that is defined by Python objects, for its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any

from wima import algorithms, averaging
from wima.algorithms import server_opt
from wima.algorithms.fedavg import FedAvg
from wima.averaging import named
from wima.runs.own_code import OWN
from wima.runs.settings import Choice, Settings, make_settings
from wima.simulation import schedules
from wima.simulation.faults import Faults
from wima.simulation.privacy import BY_NAME as PRIVACY
from wima.simulation.simulate import sorted_out
from wima.simulation.task import Task

PARTS = {  # arguments of `simulate` that settings can name
    "server_opt": ("server", server_opt.BY_NAME, server_opt.SGD),
    "schedule": ("schedule", schedules.BY_NAME, schedules.Constant),
}
UNNAMED = ("cohorts", "make", "storage")


def settings_of(task: Task, arguments: Mapping[str, Any]) -> Settings:
    """Settings that describe the arguments of `simulate`; data and model belong to the task."""
    given = dict(arguments)
    algorithm = given.pop("algorithm", None) or FedAvg()
    table: dict[str, Any] = {"data": OWN, "model": OWN, "algorithm": choice_of(algorithm)}
    for argument, (setting, registry, default) in PARTS.items():
        table[setting] = choice_of(given.pop(argument, None) or default(), registry)
    watched = named(given.pop("averagers", ())).values()
    table["averagers"] = [choice_of(averager, averaging.BY_NAME) for averager in watched]
    if privacy := given.pop("privacy", None):
        table["privacy"] = choice_of(privacy, PRIVACY)
    if isinstance(given.get("cohorts"), str):
        table["cohorts"] = given["cohorts"]
    table |= asdict(given.pop("faults", None) or Faults())
    table |= {"device": str(task.workspace.device)} if task.workspace else {}
    for part in sorted_out({n: v for n, v in given.items() if n not in UNNAMED}):
        table |= asdict(part)
    return make_settings(table)


def choice_of(thing: Any, registry: Mapping[str, type[Any]] = algorithms.BY_NAME) -> Choice:
    """The name of an object's class, with the hyper-parameters that differ from the defaults."""
    kind = type(thing)
    own = f"{kind.__module__}:{kind.__name__}"
    name = next((name for name, known in registry.items() if known is kind), own)
    return Choice(name=name, **(_changed(thing) if is_dataclass(thing) else {}))


def _changed(thing: Any) -> dict[str, Any]:
    values = {
        field.name: getattr(thing, field.name)
        for field in fields(thing)
        if field.default is MISSING or getattr(thing, field.name) != field.default
    }
    simple = (bool, int, float, str, list, tuple)
    return {name: v if isinstance(v, simple) else repr(v) for name, v in values.items()}
