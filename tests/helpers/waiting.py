"""Waiting for facts, not for times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(fact: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Look again and again until the fact holds; it is an error if it does not in time."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, f"{what}: not in {seconds:g} s"
        time.sleep(0.02)


def rounds_recorded(run: Path) -> int:
    """How many rounds a run that goes on has in its folder."""
    records = run / "records.jsonl"
    return records.read_bytes().count(b"\n") if records.exists() else 0
