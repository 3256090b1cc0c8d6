"""Server-side averages of the global models; `BY_NAME` is how settings find them."""

from __future__ import annotations

from wima.averaging.base import Averager
from wima.averaging.last import Last
from wima.averaging.watch import Watch, named
from wima.averaging.window import WIMA

BY_NAME: dict[str, type[Averager]] = {
    "wima": WIMA,
}

__all__ = ["BY_NAME", "WIMA", "Averager", "Last", "Watch", "named"]
