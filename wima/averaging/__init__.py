"""Server-side averages of the global models; settings look them up in `BY_NAME`."""

from __future__ import annotations

from wima.averaging.base import Averager
from wima.averaging.ema import EMA, PowerEMA
from wima.averaging.last import Last
from wima.averaging.lawa import LAWA
from wima.averaging.swa import SWA
from wima.averaging.watch import Watch, named
from wima.averaging.window import WIMA

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
    "Last",
    "PowerEMA",
    "Watch",
    "named",
]
