"""Snapshots: sums of a run's models, from which the mean of any window is computed afterwards.

A snapshot is the sum of the models since the previous one, not since the start of the run:
subtracting such cumulative sums would lose precision if earlier models were larger.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from wima.core.vector import Layout, Vector, one_thread
from wima.runs.folder import SNAPSHOTS, by_name
from wima.storage.files import remove_drafts, written

NAME = re.compile(r"\d{9,18}\.safetensors")  # other files in the folder are not ours
ABOUT = "about"  # the key in the metadata


class Sum(NamedTuple):
    """The sum of the models after round `begin`."""

    total: Vector  # float64, on the CPU wherever the model is
    begin: int


class Snapshots:
    """Sums the models of a run, and writes the sum every `every` rounds; 0: never."""

    def __init__(self, run: Path, every: int, w: Vector, layout: Layout | None) -> None:
        self.folder, self._every, self._layout = run / SNAPSHOTS, every, layout
        self._dtype, self._size = w.dtype, len(w)
        self.sum: Sum | None = None
        self.start(0, None)

    def start(self, t: int, saved: Sum | None) -> None:
        """Continue after round t, with the sum from a checkpoint if there is one."""
        fresh = Sum(torch.zeros(self._size, dtype=torch.float64), t) if self._every else None
        self.sum = saved if saved and self._every else fresh

    def update(self, t: int, w: Vector) -> None:
        """Add the model after round t."""
        if self.sum is None:
            return
        with one_thread():  # several threads wait for each other if cores are busy
            self.sum.total.add_(w.cpu())
        if t % self._every == 0:
            self._write(t, self.sum)
            self.start(t, None)

    def _write(self, t: int, done: Sum) -> None:
        about = {"first": done.begin + 1, "last": t, "dtype": str(self._dtype)}
        tensors = by_name(done.total, self._layout)
        told = json.dumps({**about, "sha256": checksum(about, tensors)})
        with written(self.folder / f"{t:09d}.safetensors") as draft:
            save_file(tensors, draft, {ABOUT: told})

    def discard_after(self, t: int) -> None:
        """Remove drafts, and snapshots of rounds that will be repeated."""
        remove_drafts(self.folder)
        for path in files_in(self.folder):
            if int(path.stem) > t:
                path.unlink()


def files_in(folder: Path) -> list[Path]:
    """The snapshots in a folder, oldest first."""
    found = [path for path in folder.glob("*.safetensors") if NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem))


def checksum(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The checksum of a snapshot's metadata and tensors."""
    total = hashlib.sha256(json.dumps(about).encode())
    for name in sorted(tensors):
        total.update(f"{name} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].numpy().data)
    return total.hexdigest()
