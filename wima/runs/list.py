"""The available choices, for `wima list`, which imports none of them: torch takes two seconds.

Names of registries and their one-line helps are in `choices.toml`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from wima.core.errors import unknown
from wima.data.sets import SUMMARIES
from wima.runs.settings import Settings, presets, read_toml
from wima.simulation import engines

CHOICES = Path(__file__).parent / "choices.toml"


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


def _registry(kind: str) -> Iterator[str]:
    helps = read_toml(CHOICES)[kind]
    width = max(map(len, helps))
    return (f"{name:<{width}}  {text}" for name, text in helps.items())


def _settings() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        default = field.default
        text = [str(choice) for choice in default] if isinstance(default, list) else default
        yield f"{name} = {text if text is not None else '(not set)'}"


_REGISTRIES = ("algorithms", "averagers", "servers", "privacy", "finetune", "schedules")
KINDS: Mapping[str, Callable[[], Iterator[str]]] = {
    **{kind: partial(_registry, kind) for kind in _REGISTRIES},
    "data": lambda: (f"{name:<14}{text}" for name, text in SUMMARIES.items()),
    "models": partial(_registry, "models"),
    "engines": lambda: iter(engines.NAMES),
    "trackers": partial(_registry, "trackers"),
    "presets": lambda: iter(presets()),
    "settings": _settings,
}
