"""Server-side averages of the global models; settings look them up in `BY_NAME`."""

from __future__ import annotations

from wima.averaging.averages import Averages, Last, named
from wima.averaging.base import Averager
from wima.averaging.ema import EMA, PowerEMA
from wima.averaging.lawa import LAWA
from wima.averaging.swa import SWA
from wima.averaging.wima import WIMA

BY_NAME: dict[str, type[Averager]] = {
    "wima": WIMA,
    "swa": SWA,
    "ema": EMA,
    "power-ema": PowerEMA,
    "lawa": LAWA,
}

__all__ = [
    "BY_NAME",
    "EMA",
    "LAWA",
    "SWA",
    "WIMA",
    "Averager",
    "Averages",
    "Last",
    "PowerEMA",
    "named",
]
