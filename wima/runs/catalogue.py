"""What there is to choose from, for `wima list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from wima import algorithms, averaging, data, engine, models
from wima.algorithms import server_opt
from wima.core.errors import unknown
from wima.runs import trackers
from wima.runs.settings import Settings, presets
from wima.simulation import schedules


def lines(kind: str | None = None) -> Iterator[str]:
    """One line for each thing of a kind, or of all kinds under headings."""
    if kind is None:
        for name in KINDS:
            yield f"{name}:"
            yield from (f"  {line}" for line in KINDS[name]())
    elif kind in KINDS:
        yield from KINDS[kind]()
    else:
        raise unknown("kind", kind, KINDS)


def _registry(things: Mapping[str, Any]) -> Iterator[str]:
    width = max(len(name) for name in things)
    for name, thing in things.items():
        yield f"{name:<{width}}  {_first_sentence(thing)}{_parameters(thing)}"


def _first_sentence(thing: Any) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.removesuffix(".")


def _parameters(thing: Any) -> str:
    """Hyper-parameters with their defaults."""
    if not is_dataclass(thing):
        return ""
    shown = [
        f"{field.name}={field.default!r}" for field in fields(thing) if field.default is not MISSING
    ]
    return f"  ({', '.join(shown)})" if shown else ""


def _settings() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        default = field.default
        shown = [str(choice) for choice in default] if isinstance(default, list) else default
        yield f"{name} = {shown if shown is not None else '(not set)'}"


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "algorithms": lambda: _registry(algorithms.BY_NAME),
    "averagers": lambda: _registry(averaging.BY_NAME),
    "servers": lambda: _registry(server_opt.BY_NAME),
    "schedules": lambda: _registry(schedules.BY_NAME),
    "data": lambda: (f"{name:<14}{text}" for name, text in data.SUMMARIES.items()),
    "models": lambda: _registry(models.BY_NAME),
    "engines": lambda: iter(engine.NAMES),
    "trackers": lambda: _registry(trackers.BY_NAME),
    "presets": lambda: iter(presets()),
    "settings": _settings,
}
