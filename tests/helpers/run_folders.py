"""Run folders as runs write them, with made-up curves."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from wima.runs.settings import make_settings

SEEDS, DISTINCT = 5, 20
MODELS = ("plain", "wima10", "wima50")


def write_runs(folder: Path, count: int, rounds: int) -> None:
    """Runs with different learning rates and seeds, each with a noisy and two smoother curves.

    After the first few, the records come again: writing them takes longer than the report.
    """
    for i in range(count):
        settings = {"rounds": rounds, "lr": round(0.01 * (1 + i // SEEDS), 4), "seed": i % SEEDS}
        path = folder / f"run-{i:04d}"
        if i >= DISTINCT:
            shutil.copytree(folder / f"run-{i % DISTINCT:04d}", path)
            text = make_settings({"averagers": [], **settings}).to_toml()
            (path / "settings.toml").write_text(text, encoding="utf-8")
            continue
        rng = np.random.default_rng([i])
        rise = 0.9 - 0.8 * np.exp(-np.arange(rounds) / 60)
        plain = np.clip(rise + 0.05 * rng.normal(size=rounds), 0, 1)
        curves = {model: moving_mean(plain, int(model[4:])) for model in MODELS[1:]}
        curves = {"plain": plain, **curves}
        write_run(path, settings, curves)


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last values at each place."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)


def write_run(
    path: Path,
    settings: dict[str, Any],
    curves: dict[str, np.ndarray],
    state: str = "done",
    windows: dict[str, list[int]] | None = None,
) -> Path:
    """A run folder as a run writes it, with these accuracies, and models in windows that vary."""
    made = make_settings({"averagers": [], **settings})
    path.mkdir(parents=True)
    (path / "settings.toml").write_text(made.to_toml(), encoding="utf-8")
    (path / "environment.json").write_text(_environment(), encoding="utf-8")
    done = max((len(values) for values in curves.values()), default=0)
    status = {"state": state, "done": done, "rounds": made.rounds, "reason": ""}
    (path / "status.json").write_text(json.dumps(status), encoding="utf-8")
    records, times = [], []
    for t in range(1, done + 1):
        known = {model: values for model, values in curves.items() if t <= len(values)}
        metrics = {model: _metrics(float(values[t - 1])) for model, values in known.items()}
        cohort = [(7 * t + k) % 100 for k in range(made.clients_per_round)]
        chosen = {model: counts[t - 1] for model, counts in (windows or {}).items()}
        more = {"windows": chosen} if chosen else {}
        records.append({"t": t, "cohort": cohort, "lr": made.lr, "metrics": metrics, **more})
        times.append({"t": t, "seconds": 0.25})
    for name, lines in (("records.jsonl", records), ("times.jsonl", times)):
        (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _metrics(accuracy: float) -> dict[str, float | None]:
    """Null where it is not finite, as runs write it."""
    fine = np.isfinite(accuracy)
    return {"accuracy": accuracy if fine else None, "loss": 2 - 2 * accuracy if fine else None}


@cache
def _environment() -> str:
    from wima.runs.folder import environment

    return json.dumps({**environment(), "engine": "serial", "clients": 100})
