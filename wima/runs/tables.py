"""Unchecked tables of settings: presets, TOML files and `key=value` strings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from wima.core.errors import UsageError, check, unknown
from wima.storage.reading import read_text

PRESETS = Path(__file__).parent / "presets"


def read_table(source: str) -> dict[str, Any]:
    """The table in a .toml file or a preset."""
    check(
        "=" not in source or source.endswith(".toml"),
        f"Expected a preset or a .toml file before the settings, got {source!r}; for example: "
        f"wima run digits {source}",
    )
    path = Path(source) if source.endswith(".toml") else PRESETS / f"{source}.toml"
    if not path.is_file() and not source.endswith(".toml"):
        raise unknown("preset", source, presets())
    return read_toml(path)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None


def presets() -> list[str]:
    """The names of all presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`, with the value as TOML reads it; with commas a list, otherwise a string."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"Expected key=value without spaces, got {text!r}.")
    read = _value(value)
    if isinstance(read, str) and read == value and "," in value:
        return key.strip(), [_value(part) for part in value.split(",")]
    return key.strip(), read


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or too many digits or levels
        pass
    try:
        return float(text)  # .1 and 1. are numbers too
    except ValueError:
        return text
