"""Bridges to Flower: averages on any strategy, our algorithms as an app, any app on our pool."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wima.core.errors import UsageError

if TYPE_CHECKING:
    from wima.flower.app.client import client_app
    from wima.flower.app.federation import Federation
    from wima.flower.app.options import Options
    from wima.flower.app.server import server_app
    from wima.flower.averages.legacy import averaged_legacy
    from wima.flower.averages.strategy import averaged
    from wima.flower.grid.local import LocalGrid, run_flower

if find_spec("flwr") is None:
    raise UsageError("wima.flower needs Flower, which is not installed: pip install 'wima[flower]'")

# Name -> module, loaded at first use: a node that only answers who it is need not wait for torch.
_WHERE = {
    "Federation": "app.federation",
    "LocalGrid": "grid.local",
    "Options": "app.options",
    "averaged": "averages.strategy",
    "averaged_legacy": "averages.legacy",
    "client_app": "app.client",
    "run_flower": "grid.local",
    "server_app": "app.server",
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
