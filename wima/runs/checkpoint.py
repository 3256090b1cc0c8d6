"""Checkpoints, from which a run is resumed, and snapshots, from which any window can be computed.

A checkpoint has everything that the next round depends on.  A snapshot is the mean of the models
of consecutive rounds, saved as an ordinary model: `wima average` makes the mean of any number of
them, and `wima advise` compares windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from wima.core.errors import RunError
from wima.core.vector import Layout, Vector, by_name, one_thread
from wima.runs.folder import SNAPSHOTS
from wima.simulation.simulate import Simulation
from wima.storage import manifests
from wima.storage.files import remove_drafts, written
from wima.storage.manifests import MALFORMED, Saved
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import decode, encode


def save(
    simulation: Simulation,
    store: Segments,
    identity: Mapping[str, Any],
    extra: Mapping[str, Any],
    snapshots: Snapshots | None = None,
) -> None:
    """Write a checkpoint, then remove the oldest one.  identity: settings and versions."""
    tensors: dict[str, Tensor] = {}
    rings: dict[str, Ring] = {}
    state = simulation.state
    content = {
        "identity": dict(identity),
        "extra": dict(extra),
        "state": encode((state.w, state.server, state.opt), "state", tensors, rings),
        "averages": simulation.watch.encode(tensors, rings),
        "clients": state.memory.save(store),
        "clip": state.clip,
        "snapshot": encode(snapshots and snapshots.sum, "snapshot", tensors, rings),
    }
    manifests.save(store, simulation.t, tensors, rings, **content)


def load(
    simulation: Simulation, store: Segments, saved: Saved, snapshots: Snapshots | None = None
) -> None:
    """Restore a new simulation to the state of the checkpoint."""
    try:
        _load(simulation, store, saved)
        if snapshots is not None:
            _load_sum(snapshots, store, saved)
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"The checkpoint of round {saved.t} does not match: {reason}") from error


def _load(simulation: Simulation, store: Segments, saved: Saved) -> None:
    content, state = saved.content, simulation.state
    like = (state.w, state.server, state.opt)

    def tensor(name: str) -> Tensor:
        return store.read(content["vectors"], name).to(state.w.device)

    simulation.watch.load(content, store, tensor)
    w, server, opt = decode(content["state"], like, tensor, {})
    state.memory.load(store, content["clients"], w[: simulation.setup.trained])
    simulation.state = state._replace(w=w, server=server, opt=opt, clip=content.get("clip"))
    simulation.t = saved.t


def _load_sum(snapshots: Snapshots, store: Segments, saved: Saved) -> None:
    """Restore the unfinished sum, if snapshots were on."""
    content = saved.content
    read = partial(store.read, content["vectors"])
    kept = decode(content.get("snapshot", {"value": None}), None, read, {})
    snapshots.start(saved.t, Sum(*kept) if kept else None)


class Sum(NamedTuple):
    """The sum of the models after round `begin`."""

    total: Vector  # float64, on the CPU wherever the model is
    begin: int


class Snapshots:
    """Sums the models of a run, and writes their mean every `every` rounds; 0: never.

    Each file has the mean of the rounds since the one before it, not since the start of the run:
    windows are then means of files, and nothing is subtracted.
    """

    def __init__(self, run: Path, every: int, w: Vector, layout: Layout | None) -> None:
        self.folder, self._every, self._layout = run / SNAPSHOTS, every, layout
        self._dtype, self._size = w.dtype, len(w)
        self.sum: Sum | None = None
        self.start(0, None)

    def start(self, t: int, saved: Sum | None) -> None:
        """Continue after round t, with the sum from a checkpoint if there is one."""
        empty = Sum(torch.zeros(self._size, dtype=torch.float64), t) if self._every else None
        self.sum = saved if saved and self._every else empty

    def update(self, t: int, w: Vector) -> None:
        """Add the model after round t."""
        if self.sum is None:
            return
        with one_thread():  # several threads wait for each other if cores are busy
            self.sum.total.add_(w.cpu())
        if t % self._every == 0:
            total, begin = self.sum
            tensors = by_name((total / (t - begin)).to(self._dtype), self._layout)
            with written(self.folder / f"round-{t:06d}.safetensors") as draft:
                save_file(tensors, draft, {"wima": f"mean of rounds {begin + 1} ... {t}"})
            self.start(t, None)

    def discard_after(self, t: int) -> None:
        """Remove drafts, and snapshots of rounds that will be repeated."""
        remove_drafts(self.folder)
        for path in self.folder.glob("round-*.safetensors"):
            number = path.stem.removeprefix("round-")
            if number.isdecimal() and int(number) > t:
                path.unlink()
