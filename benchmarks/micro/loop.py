"""What `WindowAverage` costs in a training loop, beside one copy of a vector of the same size."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import wima
from benchmarks.micro import micro_result
from benchmarks.report import number

PARAMETERS = 5_000_000
WINDOWS = (10, 100, 1000)
TOUCHED = 40  # rows of a ring that are written: more than caches hold, less than memory does
UPDATES = 20  # per turn


def measure(
    turns: int, parameters: int = PARAMETERS, windows: tuple[int, ...] = WINDOWS
) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = _model(parameters)
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(model, windows, Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(turns):
            for name, step in cases.items():
                seconds[name] += _times(step)
        values = _values(model, windows)
    rows = [[name, *_row(s, seconds["copy"])] for name, s in seconds.items()]
    columns = ["what", "best, ms", "over copy", "median, ms", "over copy"]
    tables = [{"columns": columns, "rows": rows}, {"columns": ["mean of", "s"], "rows": values}]
    text = (
        f"One update of a WindowAverage of {parameters:,} parameters in 32 tensors; copy: "
        f"`vector.copy_` of the same size. One thread, {turns} interleaved turns of {UPDATES} "
        f"updates. In long windows only {TOUCHED} rows are written, repeatedly. Below: the "
        "time to compute the mean on demand."
    )
    return micro_result("loop", "Averaging in a training loop", text, tables)


def _row(seconds: list[float], copy: list[float]) -> list[str]:
    """Best and median, each with its ratio to that of the copy."""
    figures = ((statistic(seconds), statistic(copy)) for statistic in (min, median))
    return [text for a, b in figures for text in (number(a * 1e3), f"{a / b:.2f}")]


def _model(parameters: int) -> nn.Module:
    """Sixteen weights and as many small tensors, as networks have them."""
    wide, small = parameters // 16 - 256, 256
    shapes = [size for _ in range(16) for size in (wide, small)]
    return nn.ParameterList([torch.randn(size) for size in shapes])


def _cases(
    model: nn.Module, windows: tuple[int, ...], folder: Path
) -> dict[str, Callable[[], object]]:
    vector = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    rows = torch.zeros(TOUCHED, len(vector))
    turn = iter(range(10**9))
    cases: dict[str, Callable[[], object]] = {
        "copy": lambda: rows[next(turn) % TOUCHED].copy_(vector)
    }
    places: dict[str, dict[str, Any]] = {"in memory": {}, "in a file": {"folder": folder}}
    places["in memory, bfloat16"] = {"dtype": torch.bfloat16}
    room = shutil.disk_usage(folder).free * 0.8
    for place, options in places.items():
        for window in windows:
            if "folder" not in options or window * vector.nbytes < room:
                average = wima.WindowAverage(model, window, **options)
                cases[f"W = {window:,}, {place}"] = _update(average)
    return cases


def _update(average: wima.WindowAverage) -> Callable[[], object]:
    """An update that stays within the first rows of the ring, all of which were written before."""
    ring, window = average._past, average.windows[-1]

    def step() -> None:
        if ring.count % window >= TOUCHED:
            ring.restart(window)
        average.update()

    for _ in range(TOUCHED):
        step()
    return step


def _times(step: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(UPDATES):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return taken


def _values(model: nn.Module, windows: tuple[int, ...]) -> list[list[str]]:
    """The time of means over rows that were all written; longer ones are left out."""
    average = wima.WindowAverage(model, TOUCHED)
    for _ in range(TOUCHED):
        average.update()
    lengths = sorted({min(window, TOUCHED) for window in windows})
    found = []
    for length in lengths:
        begin = time.perf_counter()
        average.tensors(length)
        found.append([f"{length} models", number(time.perf_counter() - begin)])
    return found
