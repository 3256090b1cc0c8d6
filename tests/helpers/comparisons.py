"""Runs of several methods with made-up accuracies, and what a comparison says of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.run_folders import moving_mean, write_run

ROUNDS, LAST = 40, 10  # a run of so many rounds is judged by its last quarter
HEIGHTS = {"fedavg": 0.5, "fedprox": 0.51, "scaffold": 0.6}


def noisy(method: str, seed: int, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """A jagged curve, higher in some seeds whatever the method, and its moving mean."""
    rng = np.random.default_rng([seed, *method.encode()])
    plain = HEIGHTS[method] + 0.02 * seed + 0.03 * rng.normal(size=rounds)
    return {"plain": plain, "wima5": moving_mean(plain, 5) + 0.01}


def write_method(
    folder: Path,
    method: str,
    seeds: Sequence[int] = (0, 1, 2),
    state: str = "done",
    **settings: Any,
) -> None:
    """Run folders of a method, one per seed; unless they are done, they stopped halfway."""
    for seed in seeds:
        rounds = settings.get("rounds", ROUNDS)
        curves = noisy(method, seed, rounds if state == "done" else rounds // 2)
        known = {"rounds": ROUNDS, "seed": seed, "algorithm": method, **settings}
        name = "-".join([method, *map(str, settings.values()), f"s{seed}"])
        write_run(folder / name, known, curves, state)


def level(method: str, model: str, seed: int, last: int = LAST) -> float:
    return float(noisy(method, seed)[model][-last:].mean())


def numbers(out: Path, method: str, model: str, seed: str = "") -> dict[str, str]:
    """A line of compare.csv."""
    wanted = {"method": method, "model": model, "seed": seed}
    with (out / "compare.csv").open(encoding="utf-8", newline="") as file:
        return next(line for line in csv.DictReader(file) if wanted.items() <= line.items())
