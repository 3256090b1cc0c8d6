"""What averaging costs: the time to take in one model, for several windows and for long ones."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from benchmarks.micro import micro_result
from benchmarks.report import number
from wima.averaging import WIMA, Averages

PARAMETERS = 1_206_590  # the FEMNIST CNN's
FIVE = (10, 20, 50, 100, 200)
LENGTHS = (10, 100, 1000)
UPDATES = 20  # per turn


def measure(
    turns: int, parameters: int = PARAMETERS, lengths: tuple[int, ...] = LENGTHS
) -> dict[str, Any]:
    torch.set_num_threads(1)  # as in a round
    cases = {"five windows: " + ", ".join(map(str, FIVE)): FIVE}
    cases |= {f"W = {length:,}": (length,) for length in lengths}
    watches = {case: _full(windows, parameters) for case, windows in cases.items()}
    w = torch.randn(parameters)
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(turns):
        for case, watch in watches.items():
            seconds[case].append(_time(watch, w))
    rows = [[case, number(min(s) * 1e3), number(median(s) * 1e3)] for case, s in seconds.items()]
    table = {"columns": ["windows", "best, ms", "median, ms"], "rows": rows}
    text = (
        f"Time to add one model of {parameters:,} parameters to full windows; "
        f"one thread, {turns} interleaved turns of {UPDATES} updates."
    )
    return micro_result("windows", "Averaging", text, [table])


def _full(windows: tuple[int, ...], parameters: int) -> Averages:
    """Averagers that have seen as many models as the longest window holds."""
    watch = Averages({f"wima{window}": WIMA(window) for window in windows}, torch.zeros(parameters))
    w = torch.randn(parameters)
    for _ in range(max(windows) + 1):
        watch.update(w)
    return watch


def _time(watch: Averages, w: torch.Tensor) -> float:
    begin = time.perf_counter()
    for _ in range(UPDATES):
        watch.update(w)
    return (time.perf_counter() - begin) / UPDATES
