"""Bridges to Flower: averages on any strategy, our algorithms as an app, any app on our workers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from wima.core.errors import UsageError
from wima.core.lazy import lazy_names

if TYPE_CHECKING:  # the same names as below, for type checkers
    from wima.flower.app.client import client_app as client_app
    from wima.flower.app.nodes import Options as Options
    from wima.flower.app.server import Federation as Federation, server_app as server_app
    from wima.flower.averages.legacy import averaged_legacy as averaged_legacy
    from wima.flower.averages.strategy import averaged as averaged
    from wima.flower.grid.local import LocalGrid as LocalGrid, run_flower as run_flower

if find_spec("flwr") is None:
    raise UsageError("wima.flower needs Flower, which is not installed: pip install 'wima[flower]'")

# A node that only reports its client number need not wait for torch.
__all__, __getattr__ = lazy_names(
    "wima.flower",
    {
        "app.client": "client_app",
        "app.nodes": "Options",
        "app.server": "Federation server_app",
        "averages.legacy": "averaged_legacy",
        "averages.strategy": "averaged",
        "grid.local": "LocalGrid run_flower",
    },
)


def __dir__() -> list[str]:
    return list(__all__)
