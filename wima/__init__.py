"""Federated learning on heterogeneous data, with window-based model averaging (WIMA).

The public names are those of `__init__.pyi`; each is loaded when it is first used.
"""

from __future__ import annotations

from wima.core.version import __version__ as __version__, lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
