"""Flower: wima's algorithms on a real federation.  Names are loaded at first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Name -> module.  A node that only answers who it is need not wait for torch.
_WHERE = {
    "Federation": "federation",
    "Options": "options",
    "client_app": "client",
    "server_app": "server",
}

__all__ = ["Federation", "Options", "client_app", "server_app"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'wima.flower' has no attribute {name!r}")
    return getattr(import_module(f"wima.flower.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
