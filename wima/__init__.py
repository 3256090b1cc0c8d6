"""Federated learning on heterogeneous data, with window-based model averaging (WIMA).

The public names are those of `__init__.pyi`; each is loaded when it is first used.
"""

from __future__ import annotations

from typing import Any

from wima.core.version import __version__ as __version__, lazy_names

__all__, _look_up = lazy_names(__name__, __file__)


def __getattr__(name: str) -> Any:
    return _look_up("Run" if name == "Result" else name)  # its name in version 0.1.0


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
