"""The available choices, for `wima list`; nothing that it lists is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wima import engine
from wima.core.errors import unknown
from wima.data.sets import SUMMARIES
from wima.runs.sources import registry


def lines(kind: str | None = None) -> Iterator[str]:
    """One line per entry of a kind, or of all kinds with headings."""
    if kind is None:
        for name in KINDS:
            yield f"{name}:"
            yield from (f"  {line}" for line in KINDS[name]())
    elif kind in KINDS:
        yield from KINDS[kind]()
    else:
        raise unknown("kind", kind, KINDS)


def _registry(module: str) -> Iterator[str]:
    things = registry(module)
    width = max(len(name) for name in things)
    for name, thing in things.items():
        text = " ".join(thing.docstring.split("\n\n")[0].split()).removesuffix(".")
        given = ", ".join(f"{key}={value!r}" for key, value in thing.defaults.items())
        yield f"{name:<{width}}  {text}" + (f"  ({given})" if given else "")


def _presets() -> Iterator[str]:
    from wima.runs.settings import presets

    yield from presets()


def _settings() -> Iterator[str]:
    from wima.runs.settings import Settings

    for name, field in Settings.model_fields.items():
        default = field.default
        shown = [str(choice) for choice in default] if isinstance(default, list) else default
        yield f"{name} = {shown if shown is not None else '(not set)'}"


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "algorithms": lambda: _registry("algorithms"),
    "averagers": lambda: _registry("averaging"),
    "servers": lambda: _registry("algorithms.server_opt"),
    "privacy": lambda: _registry("engine.privacy"),
    "finetune": lambda: _registry("engine.exams"),
    "schedules": lambda: _registry("simulation.schedules"),
    "data": lambda: (f"{name:<14}{text}" for name, text in SUMMARIES.items()),
    "models": lambda: _registry("models"),
    "engines": lambda: iter(engine.NAMES),
    "trackers": lambda: _registry("runs.trackers"),
    "presets": _presets,
    "settings": _settings,
}
