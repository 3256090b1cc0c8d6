"""Every prefix of what a program writes, in every way a crash may leave it: does it go on?"""

from __future__ import annotations

import os
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.interrupted import ends, in_a_fork
from tests.lab.disk import Tree, read_tree, trees, write_tree
from tests.lab.recorder import Operation, recording
from tests.lab.scenarios import SCENARIOS, Scenario
from wima.core.errors import RunError, UsageError

REFUSED = 3  # exit code of a child


def record(scenario: Scenario, folder: Path) -> tuple[Tree, list[Operation]]:
    """What is there before the work, and what the work does."""
    folder.mkdir()
    scenario.prepare(folder)
    before = read_tree(folder)
    with recording(folder) as operations:
        scenario.work(folder)
    return before, operations


def verdict(scenario: Scenario, tree: Tree, folder: Path, expected: object) -> str:
    """How the program goes on from a tree: same, refused, other, or failed; with the reason."""
    write_tree(tree, folder)
    reason = folder.with_name("reason.txt")
    reason.write_text("no reason")

    def work() -> None:
        try:
            scenario.finish(folder)
        except (UsageError, RunError) as error:
            reason.write_text(str(error))
            os._exit(REFUSED)
        except BaseException:
            reason.write_text(traceback.format_exc())
            raise

    code = ends(in_a_fork(work))
    if code:
        return f"{'refused' if code == REFUSED else 'failed'}: {reason.read_text()}"
    return "same" if scenario.outcome(folder) == expected else "other: its outcome differs"


def replay(name: str, share: float = 1.0, seed: int = 0) -> Iterator[tuple[str, str]]:
    """For each tree that a crash may leave, or a share of them, its name and the verdict."""
    scenario, draw = SCENARIOS[name], random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        before, operations = record(scenario, Path(place) / "files")
        expected = scenario.outcome(Path(place) / "files")
        for crash, tree in trees(operations, before):
            if draw.random() < share:
                yield crash, verdict(scenario, tree, Path(place) / "files", expected)


def told(counts: Counter[str]) -> str:
    kinds = ("same", "refused", "other", "failed")
    return f"{counts.total()} cases: " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds)


def main(share: float, seed: int) -> int:
    """Print the counts of each program; the exit code."""
    bad = 0
    for name in SCENARIOS:
        begin, counts = time.perf_counter(), Counter[str]()
        for crash, found in replay(name, share, seed):
            kind = found.partition(":")[0]
            counts[kind] += 1
            if kind != "same":
                print(f"  {name}, after operation {crash}: {found}")
        bad += counts["other"] + counts["failed"]
        print(f"{name}: {told(counts)} ({time.perf_counter() - begin:.0f} s)", flush=True)
    return int(bad > 0)
