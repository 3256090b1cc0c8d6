"""Bridges to Flower: averages on any strategy, our algorithms as an app, any app on our pool."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wima.errors import UsageError

if TYPE_CHECKING:
    from wima.flower.client import client_app
    from wima.flower.federation import Federation
    from wima.flower.grid import LocalGrid, run_flower
    from wima.flower.legacy import averaged_legacy
    from wima.flower.options import Options
    from wima.flower.server import server_app
    from wima.flower.strategy import averaged

if find_spec("flwr") is None:
    raise UsageError("wima.flower needs Flower, which is not installed: pip install 'wima[flower]'")

# Name -> module, loaded at first use: a node that only answers who it is need not wait for torch.
_WHERE = {
    "Federation": "federation",
    "LocalGrid": "grid",
    "Options": "options",
    "averaged": "strategy",
    "averaged_legacy": "legacy",
    "client_app": "client",
    "run_flower": "grid",
    "server_app": "server",
}

__all__ = [
    "Federation",
    "LocalGrid",
    "Options",
    "averaged",
    "averaged_legacy",
    "client_app",
    "run_flower",
    "server_app",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'wima.flower' has no attribute {name!r}")
    return getattr(import_module(f"wima.flower.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
