"""Server-side averages of the global models; settings look them up in `BY_NAME`."""

from wima.averaging.base import (
    Averager as Averager,
    Averages as Averages,
    Last as Last,
    named as named,
)
from wima.averaging.ema import EMA as EMA, PowerEMA as PowerEMA
from wima.averaging.lawa import LAWA as LAWA
from wima.averaging.swa import SWA as SWA
from wima.averaging.wima import WIMA as WIMA

BY_NAME: dict[str, type[Averager]] = {
    "wima": WIMA,
    "swa": SWA,
    "ema": EMA,
    "power-ema": PowerEMA,
    "lawa": LAWA,
}
