"""A strip below the curves: the number of models in windows that are chosen automatically."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TITLE = "models in\nthe window"
HEIGHT = 0.26  # relative to the curves


def axes_of(figure: Any, windows: Iterable[Iterable[float]]) -> tuple[Any, Any]:
    """The axes of the curves, and those of the windows below them, or None without windows."""
    from matplotlib.ticker import LogLocator

    longest = max(map(max, windows), default=0)
    if not longest:
        axes = figure.add_subplot()
        axes.set_xlabel("round")
        return axes, None
    figure.set_figheight(figure.get_figheight() + 1)
    axes, strip = figure.subplots(2, sharex=True, height_ratios=(1, HEIGHT))
    strip.set_yscale("log")
    strip.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if longest <= 100 else (1,)))
    strip.yaxis.set_major_formatter("{x:g}")
    strip.yaxis.set_minor_formatter("")
    strip.set_ylabel(TITLE, fontsize="small")
    strip.set_xlabel("round")
    strip.grid(alpha=0.3)
    return axes, strip
