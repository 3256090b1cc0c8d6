"""The command that repeats a run, however it was started: `wima run PRESET key=value ...`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wima.core.errors import UsageError
from wima.runs.settings import Choice, Settings, load_settings, parse_override, presets


def run_command(settings: Settings, path: Path) -> list[str]:
    """The shortest `wima run` command with exactly these settings; path: the run's folder.

    If no preset can be changed to them, since TOML has no null, it uses the folder's settings.toml.
    """
    found = (words for preset in presets() for words in _from_preset(preset, settings))
    by_file = ["wima", "run", str(path / "settings.toml")]
    return min(found, key=lambda words: len(" ".join(words)), default=by_file)


def _from_preset(preset: str, settings: Settings) -> Iterator[list[str]]:
    base = load_settings(preset, [])
    changes = [
        f"{name}={_text(getattr(settings, name))}"
        for name in Settings.model_fields
        if getattr(settings, name) != getattr(base, name)
    ]
    try:
        made = load_settings(preset, changes)
    except UsageError:
        return
    if made.to_toml() == settings.to_toml():  # 1 == 1.0, but they are different settings
        yield ["wima", "run", preset, *changes]


def _text(value: Any) -> str:
    """A value as `parse_override` reads it."""
    if isinstance(value, list):
        return ",".join(map(_text, value)) or "[]"
    if isinstance(value, Choice):
        pairs = (f"{key}={_text(part)}" for key, part in value.parameters.items())
        return ":".join([value.name, *pairs])
    if isinstance(value, str):
        return value if parse_override(f"text={value}")[1] == value else json.dumps(value)
    return str(value).lower()  # as TOML writes numbers, inf, true and false
