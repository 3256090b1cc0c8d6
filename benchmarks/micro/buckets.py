"""What buckets cost: taking in a model, inner products with all sums, and the longest mean."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.micro import micro_result
from benchmarks.report import number
from wima.averaging.buckets import DEFAULT_K, Buckets
from wima.storage.states import Spare

PARAMETERS, MODELS = 1_000_000, 10_000
UPDATES = 256  # per turn: of the merges, all but one in 256 happen as often as in a whole run
ROUND = 1.2  # seconds, of a FEMNIST round on two cores; see README.md


def measure(
    turns: int, parameters: int = PARAMETERS, models: int = MODELS, k: int = DEFAULT_K
) -> dict[str, Any]:
    torch.set_num_threads(1)  # as in a round
    buckets, v = _fullest(parameters, models, k), torch.randn(parameters)
    sums = len(buckets.sums)
    last: list[Buckets] = []

    def push() -> None:
        last[0] = last[0].push(v)

    cases: dict[str, tuple[Callable[[], object], int]] = {
        f"one update, mean of {UPDATES}": (push, UPDATES),
        f"inner products with {sums} sums": (lambda: buckets.inner(v), 1),
        f"mean over {sums} sums": (lambda: buckets.mean(sums), 1),
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(turns):
        last[:] = [buckets._replace(sums=tuple(s.clone() for s in buckets.sums), spare=Spare())]
        for case, (work, times) in cases.items():
            seconds[case].append(_time(work, times))
    rows = [[case, *_row(s)] for case, s in seconds.items()]
    table = {"columns": ["what", "best, ms", "median, ms", "best, % of a round"], "rows": rows}
    text = (
        f"Buckets of {parameters:,} parameters with k = {k}, at their largest in {models:,} "
        f"rounds: {sums} float64 sums, {number(8e-6 * sums * parameters)} MB. Processor time, one "
        f"thread, {turns} interleaved turns. A round of the FEMNIST CNN takes about {ROUND} s."
    )
    return micro_result("buckets", "Every window from a few sums", text, [table])


def _fullest(parameters: int, models: int, k: int) -> Buckets:
    """The buckets at the round where there are most, with random sums."""
    small = most = Buckets.start(torch.zeros(1), k)
    for _ in range(models):
        small = small.push(torch.zeros(1))
        most = max(most, small, key=lambda b: len(b.sizes))
    sums = tuple(torch.randn(parameters, dtype=torch.float64) for _ in most.sizes)
    return most._replace(sums=sums, spare=Spare())


def _row(seconds: list[float]) -> list[str]:
    best = min(seconds)
    return [number(best * 1e3), number(median(seconds) * 1e3), number(100 * best / ROUND)]


def _time(work: Callable[[], object], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times
