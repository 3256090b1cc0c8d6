"""Runs that are killed at random moments, again and again, until they are done."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.helpers.interrupted import FILES, ends, in_a_fork, kill, outcome, settings_of
from tests.lab.scenarios import finish
from wima.core.errors import RunError, UsageError
from wima.runs.launch import launch
from wima.runs.run import read_run
from wima.runs.settings import Settings

FOUND = ("kills", "runs", "mismatches", "unreadable", "drafts left behind")
CASES = {
    "fedavg": {},
    "fedavg-files": FILES,
    "scaffold": {"algorithm": "scaffold"},
    "scaffold-files": {"algorithm": "scaffold", **FILES},
    "adabest": {"algorithm": "adabest"},
    "adabest-files": {"algorithm": "adabest", "store_dtype": "bfloat16", **FILES},
    "mime": {"algorithm": "mime", "server": "sgd:lr=0.1"},
    "mime-files": {"algorithm": "mime", "server": "sgd:lr=0.1", **FILES},
    "snapshots": {"snapshots": 3},
    "fedadam": {"server": "adam:lr=0.01", "dropout": 0.3, "stragglers": 0.3},
}


def killed_until_done(
    path: Path, settings: Settings, draw: random.Random, seconds: float, most: int
) -> int:
    """Start and resume a run, killing it at most so many times; the number of kills."""
    for kills in range(most):
        pid = in_a_fork(lambda: finish(path, settings))
        kill(pid, draw.uniform(0.0, 1.0) * seconds)
        if path.exists() and read_run(path).status["state"] == "done":
            return kills + 1
    if ends(in_a_fork(lambda: finish(path, settings))):
        raise RunError(f"{path} cannot be resumed")
    return most


def crash(kills: int, seed: int, tell: Callable[[str], object]) -> Counter[str]:
    """Kill runs of all cases in turn, so many times in all; what was found."""
    draw, found = random.Random(seed), Counter(dict.fromkeys(FOUND, 0))
    with tempfile.TemporaryDirectory() as place:
        whole: dict[str, tuple[float, dict[str, bytes]]] = {}
        for name, changes in CASES.items():
            begin = time.perf_counter()
            ends(in_a_fork(lambda c=changes, n=name: launch(settings_of(**c), Path(place) / n)))
            whole[name] = time.perf_counter() - begin, outcome(Path(place) / name)
        while found["kills"] < kills:
            for name, (seconds, expected) in whole.items():
                path, settings = Path(place) / "killed", settings_of(**CASES[name])
                try:
                    found["kills"] += killed_until_done(path, settings, draw, seconds, 12)
                    found["mismatches"] += outcome(path) != expected
                except (UsageError, RunError, OSError) as error:
                    found["unreadable"] += 1
                    tell(f"{name}: {error}")
                found["drafts left behind"] += len(list(Path(place).rglob(".*.new")))
                found["runs"] += 1
                shutil.rmtree(path, ignore_errors=True)
            tell(", ".join(f"{count} {what}" for what, count in found.items()))
    return found


def main(kills: int, seed: int) -> int:
    """Print what was found; the exit code."""
    found = crash(kills, seed, lambda line: print(line, flush=True))
    return int(found["mismatches"] + found["unreadable"] > 0)
