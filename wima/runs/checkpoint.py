"""Checkpoints of a simulation: everything that its next round depends on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from wima.core.errors import RunError
from wima.runs.snapshots import Snapshots, Sum
from wima.simulation.simulate import Simulation
from wima.storage import manifests
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
