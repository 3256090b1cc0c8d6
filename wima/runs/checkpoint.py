"""Checkpoints of a simulation: all that its next round depends on.

A checkpoint is a manifest, `000120.json`, that lists immutable segments with their checksums: the
vectors of the moment, the ring, the memory of clients.  Of the last two only what changed since the
checkpoint before is written.  The two newest are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from wima.core.errors import RunError, UsageError
from wima.simulation.simulation import Simulation
from wima.storage.ring import Ring
from wima.storage.segments import Segments, read_manifest, write_manifest
from wima.storage.states import decode, encode

FORMAT = 1
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
KEPT = 2


class Checkpoint(NamedTuple):
    """A manifest that was found whole, with all of its segments."""

    t: int
    identity: dict[str, Any]  # settings and versions of the run that wrote it
    extra: dict[str, Any]  # what the caller added
    manifest: dict[str, Any]


def save(
    simulation: Simulation, store: Segments, identity: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    """Write a checkpoint, then let go of the oldest one."""
    tensors: dict[str, Tensor] = {}
    rings: dict[str, Ring] = {}
    state, watch = simulation.state, simulation.watch
    manifest = {
        "format": FORMAT,
        "t": simulation.t,
        "identity": dict(identity),
        "extra": dict(extra),
        "state": encode((state.w, state.server, state.opt), "state", tensors, rings),
        "averages": {
            name: encode(watch.states[name], f"average {name}", tensors, rings)
            for name in watch.averagers
        },
        "vectors": store.write("vectors", tensors),
        "rings": {
            name: {"count": ring.count, "segments": ring.save(store, "ring")}
            for name, ring in {"past": watch.ring, **rings}.items()
        },
        "clients": state.memory.save(store),
    }
    needed = segments_of(manifest)
    manifest["sums"] = {name: store.sums[name] for name in needed}
    write_manifest(store.folder / f"{simulation.t:09d}.json", manifest)
    let_go(store)


def segments_of(manifest: Mapping[str, Any]) -> list[str]:
    """The segments that a checkpoint needs."""
    rings = [name for ring in manifest["rings"].values() for name in ring["segments"]]
    return list(dict.fromkeys([manifest["vectors"], *rings, *manifest["clients"]]))


def let_go(store: Segments) -> None:
    """Remove old manifests, then segments that no manifest needs."""
    paths = manifests(store.folder)
    needed: set[str] = set()
    for path in paths[:KEPT]:
        with contextlib.suppress(RunError, UsageError, *MALFORMED):
            needed.update(segments_of(read_manifest(path, FORMAT)))
    for path in paths[KEPT:]:
        with contextlib.suppress(OSError):
            path.unlink()
    store.keep(needed)


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder, newest first."""
    return sorted(folder.glob("[0-9]*.json"), reverse=True)


def find(store: Segments) -> tuple[list[Checkpoint], list[str]]:
    """Whole checkpoints, newest first, and what is wrong with the others."""
    found, wrong = [], []
    for path in manifests(store.folder):
        try:
            manifest = read_manifest(path, FORMAT)
            for name in segments_of(manifest):
                store.verify(name, manifest["sums"][name])
            t, identity, extra = (manifest[key] for key in ("t", "identity", "extra"))
            found.append(Checkpoint(int(t), dict(identity), dict(extra), manifest))
        except RunError as error:
            wrong.append(str(error))
        except MALFORMED as error:
            wrong.append(f"{path} is damaged: {type(error).__name__}: {error}")
    return found, wrong


def load(simulation: Simulation, store: Segments, checkpoint: Checkpoint) -> None:
    """Put a fresh simulation where the checkpoint was written."""
    try:
        _load(simulation, store, checkpoint)
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"The checkpoint of round {checkpoint.t} does not fit: {reason}") from error


def _load(simulation: Simulation, store: Segments, checkpoint: Checkpoint) -> None:
    manifest, state, watch = checkpoint.manifest, simulation.state, simulation.watch
    like = (state.w, state.server, state.opt)
    rings: dict[str, Ring] = {}

    def tensor(name: str) -> Tensor:
        return store.read(manifest["vectors"], name).to(state.w.device)

    for name in watch.averagers:
        encode(watch.states[name], f"average {name}", {}, rings)  # finds the rings of averagers
    for name, ring in {"past": watch.ring, **rings}.items():
        saved = manifest["rings"][name]
        ring.load(store, saved["segments"], saved["count"])
    w, server, opt = decode(manifest["state"], like, tensor, rings)
    for name in watch.averagers:
        same = watch.states[name]
        watch.states[name] = decode(manifest["averages"][name], same, tensor, rings)
    state.memory.load(store, manifest["clients"], w[: simulation.setup.trained])
    simulation.state = state._replace(w=w, server=server, opt=opt)
    simulation.t = checkpoint.t
