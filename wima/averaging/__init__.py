"""Server-side averages of the global models; settings look them up in `BY_NAME`."""

from wima.averaging.base import Averager, Averages, Last, named
from wima.averaging.ema import EMA, PowerEMA
from wima.averaging.lawa import LAWA
from wima.averaging.swa import SWA
from wima.averaging.wima import WIMA

__all__ = ["EMA", "LAWA", "SWA", "WIMA", "Averager", "Averages", "Last", "PowerEMA", "named"]

BY_NAME: dict[str, type[Averager]] = {
    "wima": WIMA,
    "swa": SWA,
    "ema": EMA,
    "power-ema": PowerEMA,
    "lawa": LAWA,
}
