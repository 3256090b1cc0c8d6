"""What buckets cost: taking in a model, a round of `window=auto`, and the longest mean."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.micro import micro_result
from benchmarks.report import number
from wima.averaging.wima import DEFAULT_K, AutoWindow, Choice
from wima.storage.states import Spare

PARAMETERS, MODELS = 1_000_000, 10_000
UPDATES = 256  # per turn: of the merges, all but one in 256 happen as often as in a whole run
ROUND = 1.2  # seconds, of a FEMNIST round on two cores; see README.md


def measure(
    turns: int, parameters: int = PARAMETERS, models: int = MODELS, k: int = DEFAULT_K
) -> dict[str, Any]:
    torch.set_num_threads(1)  # as in a round
    auto, v = AutoWindow(k), torch.randn(parameters)
    fullest = _fullest(auto, parameters, models)
    sums = len(fullest.buckets.sums)
    state = [fullest]

    def update() -> None:
        state[0] = auto.update(state[0], v, None)  # type: ignore[arg-type]

    cases: dict[str, tuple[Callable[[], object], int]] = {
        f"one update, mean of {UPDATES}": (update, UPDATES),
        f"scores of all windows, from {sums} sums": (lambda: auto.use_gradient(fullest, v), 1),
        f"mean over {sums} sums": (lambda: fullest.buckets.mean(sums), 1),
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(turns):
        copies = tuple(s.clone() for s in fullest.buckets.sums)
        buckets = fullest.buckets._replace(sums=copies, spare=Spare())
        state[:] = [fullest._replace(buckets=buckets)]
        for case, (work, times) in cases.items():
            seconds[case].append(_time(work, times))
    rows = [[case, *_row(s)] for case, s in seconds.items()]
    table = {"columns": ["what", "best, ms", "median, ms", "best, % of a round"], "rows": rows}
    text = (
        f"`window=auto` with {parameters:,} parameters and k = {k}, at its largest in {models:,} "
        f"rounds: {sums} float64 sums, {number(8e-6 * sums * parameters)} MB. Processor time, one "
        f"thread, {turns} interleaved turns. A round of the FEMNIST CNN takes about {ROUND} s."
    )
    return micro_result("buckets", "Every window from a few sums", text, [table])


def _fullest(auto: AutoWindow, parameters: int, models: int) -> Choice:
    """The state at the last round where there are most sums, with random ones."""
    small = most = auto.init(torch.zeros(1))
    for _ in range(models):
        small = auto.update(small, torch.zeros(1), None)  # type: ignore[arg-type]
        most = max(small, most, key=lambda state: len(state.buckets.sizes))
    sums = tuple(torch.randn(parameters, dtype=torch.float64) for _ in most.buckets.sizes)
    return most._replace(buckets=most.buckets._replace(sums=sums, spare=Spare()))


def _row(seconds: list[float]) -> list[str]:
    best = min(seconds)
    return [number(best * 1e3), number(median(seconds) * 1e3), number(100 * best / ROUND)]


def _time(work: Callable[[], object], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times
