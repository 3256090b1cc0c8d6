"""Records with what runs may also record: bytes, clients, fine-tuning, calibration; made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.statistics import summary

BINS, CLIENTS = 15, 40
DOWN, UP = 300_000, 200_000  # bytes per round


def clients(seed: int, t: int) -> dict[str, np.ndarray]:
    """The accuracy of each client with each model; the average is a little better."""
    rng = np.random.default_rng([seed, t])
    plain = rng.uniform(0.2, 0.8, CLIENTS).round(2)
    return {"plain": plain, "wima10": (plain + rng.normal(0.05, 0.05, CLIENTS)).clip(0, 1).round(2)}


def summaries(values: dict[str, np.ndarray]) -> dict[str, Any]:
    plain = values["plain"]
    return {m: summary(v, None if m == "plain" else plain) for m, v in values.items()}


def bins(seed: int, t: int) -> dict[str, list[list[Any]]]:
    """Examples, mean confidence and accuracy of each bin; the first bins are empty."""
    rng = np.random.default_rng([seed, t, 1])
    made: dict[str, list[list[Any]]] = {}
    for model in ("plain", "wima10"):
        counts = [0, 0, *rng.integers(1, 100, BINS - 2).tolist()]
        centres = (np.arange(BINS) + 0.5) / BINS
        accuracy = (centres + rng.normal(0, 0.05, BINS)).clip(0, 1)
        filled = zip(counts, centres.tolist(), accuracy.tolist(), strict=True)
        made[model] = [[n, c, a] if n else [0, None, None] for n, c, a in filled]
    return made


def ece(seed: int, t: int, model: str) -> float:
    filled = [own for own in bins(seed, t)[model] if own[0]]
    count = sum(own[0] for own in filled)
    return sum(n * abs(c - a) for n, c, a in filled) / count


def tuned(seed: int) -> dict[str, Any]:
    stages = {"before": clients(seed, 0), "after": clients(seed, 1)}
    made = {stage: summaries(values) for stage, values in stages.items()}
    return {m: {stage: made[stage][m] for stage in stages} for m in ("plain", "wima10")}


def records_of(run: Path) -> list[dict[str, Any]]:
    text = (run / "records.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every record of a run folder."""
    records = records_of(run)
    for record in records:
        change(record)
    file = run / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def add_extras(run: Path, seed: int, rounds: int, every: int = 20) -> None:
    """Everything that a run can record, with clients every `every` rounds and in the last."""

    def add(record: dict[str, Any]) -> None:
        t = record["t"]
        record["bytes"] = {"down": DOWN, "up": UP}
        record["calibration"] = bins(seed, t)
        for model, metrics in record["metrics"].items():
            metrics["ece"] = ece(seed, t, model)
        if t % every == 0 or t == rounds:
            record["clients"] = summaries(clients(seed, t))
        if t == rounds:
            record["finetuned"] = tuned(seed)

    rewrite(run, add)
