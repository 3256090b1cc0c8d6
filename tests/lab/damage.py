"""Every file of a run folder, damaged in many ways: the run is repaired, or refused."""

from __future__ import annotations

import codecs
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.helpers.interrupted import killed_after, outcome, settings_of
from tests.lab.disk import read_tree
from tests.lab.kills import CASES
from tests.lab.replay import told, verdict
from tests.lab.scenarios import Scenario, finish
from wima.runs.launch import launch

Damage = Callable[[bytes, random.Random], bytes | None]  # None: the file is removed
ROUNDS = {"rounds": 14, "checkpoint_every": 5}


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"\n")
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Damage] = {
    "removed": lambda content, draw: None,
    "emptied": lambda content, draw: b"",
    "zeros": lambda content, draw: bytes(len(content)),
    "cut": lambda content, draw: content[: draw.randrange(max(1, len(content)))],
    "one byte short": lambda content, draw: content[:-1],
    "a bit flipped": _flip,
    "another bit flipped": _flip,
    "twice": lambda content, draw: content + content,
    "something appended": lambda content, draw: content + b"{}\n",
    "a mark at the start": lambda content, draw: codecs.BOM_UTF8 + content,
    "other newlines": lambda content, draw: content.replace(b"\n", b"\r\n"),
}


def damaged(case: str, ended: bool, seed: int) -> Iterator[tuple[str, str]]:
    """What was damaged in a run of a case, which was killed or has ended, and the verdict."""
    settings = settings_of(**{**CASES[case], **ROUNDS})
    with tempfile.TemporaryDirectory() as place:
        whole, run = Path(place) / "whole", Path(place) / "files" / "run"
        launch(settings, whole)
        expected = outcome(whole)
        if ended:
            shutil.copytree(whole, run)
        else:
            killed_after(12, settings, run)
        tree = read_tree(run.parent)
        scenario = Scenario(
            prepare=lambda folder: None,
            work=lambda folder: None,
            finish=lambda folder: finish(folder / "run", settings),
            outcome=lambda folder: outcome(folder / "run"),
        )
        for name, content in tree.items():
            for kind, damage in DAMAGES.items():
                if content is None:
                    continue
                draw = random.Random(f"{seed} {case} {name} {kind}")
                changed = damage(content, draw)
                left = {k: v for k, v in tree.items() if k != name or changed is not None}
                left |= {name: changed} if changed is not None else {}
                found = verdict(scenario, left, run.parent, expected)
                if "The run failed after" in found:  # it would at every attempt
                    found = found.replace("refused", "failed", 1)
                yield f"{case}, {'ended' if ended else 'killed'}, {name}, {kind}", found


def main(seed: int) -> int:
    """Print what was found; the exit code."""
    counts = Counter[str]()
    for case in ("fedavg", "scaffold-files"):
        for ended in (False, True):
            for what, found in damaged(case, ended, seed):
                kind = found.partition(":")[0]
                counts[kind] += 1
                if kind not in ("same", "refused"):
                    print(f"  {what}: {found}", flush=True)
    print(f"damaged files: {told(counts)}")
    return int(counts["other"] + counts["failed"] > 0)
