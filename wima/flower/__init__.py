"""Bridges to Flower: the window on any strategy, and any Flower app on our processes."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wima.errors import UsageError

if TYPE_CHECKING:
    from wima.flower.grid import LocalGrid, run_flower
    from wima.flower.legacy import averaged_legacy
    from wima.flower.strategy import averaged

if find_spec("flwr") is None:
    raise UsageError("wima.flower needs Flower, which is not installed: pip install 'wima[flower]'")

# Name -> module, loaded at first use.
_WHERE = {
    "LocalGrid": "grid",
    "averaged": "strategy",
    "averaged_legacy": "legacy",
    "run_flower": "grid",
}

__all__ = ["LocalGrid", "averaged", "averaged_legacy", "run_flower"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'wima.flower' has no attribute {name!r}")
    return getattr(import_module(f"wima.flower.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
