"""A small run to be tracked, and what trackers should have of it."""

from __future__ import annotations

from pathlib import Path

from wima.runs.run import read_run
from wima.runs.settings import Settings, make_settings
from wima.runs.track import scalars

ROUNDS = 12
BASE = {
    "clients": 12,
    "rounds": ROUNDS,
    "clients_per_round": 3,
    "lr": 0.05,
    "schedule": "exponential:decay=0.9",
    "engine": "serial",
    "averagers": ["wima:window=3", "ema"],
    "eval_every": 2,
    "eval_last": 0,
    "checkpoint_every": 5,
    "checkpoint_minutes": 0.0,
}


def settings_of(**changes) -> Settings:
    return make_settings({**BASE, **changes})


def numbers(path: Path) -> dict[str, dict[int, float]]:
    """What a tracker should have of a run: name -> round -> value."""
    expected: dict[str, dict[int, float]] = {}
    for record in read_run(path).records:
        for name, value in scalars(record).items():
            expected.setdefault(name, {})[record.t] = value
    return expected
