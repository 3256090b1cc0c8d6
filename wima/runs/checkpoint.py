"""Checkpoints, from which a run is resumed, and snapshots, from which any window can be computed.

A checkpoint has everything that the next round depends on, and the identity of the run: what
determines its bytes, so that a run is resumed only to the same result.  A snapshot is the mean of
the models of consecutive rounds, saved as an ordinary model: `wima average` makes the mean of any
number of them, and `wima advise` compares windows.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from wima.core.errors import RunError, UsageError, check
from wima.core.vector import Layout, Vector, by_name, one_thread
from wima.data.sets import REMARKS
from wima.runs.folder import SNAPSHOTS, environment
from wima.runs.own_code import source
from wima.runs.run import Run
from wima.runs.settings import Settings, change_settings
from wima.simulation.engines import EXACT
from wima.simulation.simulate import Simulation
from wima.storage import manifests
from wima.storage.files import digest, remove_drafts, written
from wima.storage.manifests import MALFORMED, Saved
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import decode, encode

VERSIONS, FACTS = ("wima", "torch", "numpy"), ("engine", "data_checksum", "noise")


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
    content, state = saved.content, simulation.state

    def tensor(name: str) -> Tensor:
        return store.read(content["vectors"], name).to(state.w.device)

    try:
        simulation.watch.load(content, store, tensor)
        like = (state.w, state.server, state.opt)
        w, server, opt = decode(content["state"], like, tensor, {})
        state.memory.load(store, content["clients"], w[: simulation.setup.trained])
        simulation.state = state._replace(w=w, server=server, opt=opt, clip=content.get("clip"))
        simulation.t = saved.t
        if snapshots is not None:  # the unfinished sum, if snapshots were on
            read = partial(store.read, content["vectors"])
            kept = decode(content.get("snapshot", {"value": None}), None, read, {})
            snapshots.start(saved.t, Sum(*kept) if kept else None)
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"The checkpoint of round {saved.t} does not match: {reason}") from error


# The identity of a run.


def identity_of(settings: Settings, simulation: Simulation) -> dict[str, Any]:
    """What must be the same for a run to resume to the same bytes."""
    around = {**environment(), **simulation.facts()}
    return {**settings.in_results(), **{n: around[n] for n in (*VERSIONS, *FACTS) if n in around}}


def check_same(run: Run, found: Sequence[Saved], now: dict[str, Any]) -> None:
    """Refuse to resume to a different result.  Before the first checkpoint, compare the folder."""
    at_first = {name: run.environment.get(name) for name in (*VERSIONS, *FACTS)}
    then = found[0].identity if found else {n: v for n, v in at_first.items() if v is not None}
    differ = [
        f"{name}: {value!r} then, {now.get(name)!r} now"
        for name, value in sorted(then.items())
        if value != json.loads(json.dumps(now.get(name)))
        and not (name == "engine" and arithmetic(value) == arithmetic(now[name]))
    ]
    if not found and run.settings.run_id != run.status.get("settings", run.settings.run_id):
        differ.append("settings.toml was changed")
    if then.get("data_checksum") != now.get("data_checksum"):
        differ += [REMARKS[name] for name in (run.settings.data.name,) if name in REMARKS]
    if differ:
        raise UsageError(
            f"The run in {run.path} was started with different settings, data or versions, so it "
            "cannot be resumed to the same result:\n  " + "\n  ".join(differ) + "\nRestore what "
            f"changed, or start a new run: `wima run {run.path / 'settings.toml'} --out ...`."
        )


def own_code(settings: Settings) -> dict[str, dict[str, str]]:
    """Checksums of the files that a user's own code was loaded from, by name."""
    loaded = {name: source(name) for name in settings.own_names()}
    sums = {name: digest(path) for name, path in loaded.items() if path is not None}
    return {"own_code": sums} if sums else {}


def remarks_on(run: Run) -> list[str]:
    """Changes since the run started that do not prevent resuming it."""
    here = environment()
    then = {**here, **run.environment}
    there, this = (f"{e['processor']} with {e['instructions']}" for e in (then, here))
    processor = (
        f"The run started on another processor ({there}; here: {this}). From here on, records and "
        "models match those of the other processor up to rounding, not bit by bit."
    )
    before, now = run.environment.get("own_code"), own_code(run.settings).get("own_code", {})
    changed = [name for name, total in now.items() if before and before.get(name) != total]
    code = f"The code of {', '.join(changed)} has changed; the remaining rounds use the new code."
    return [processor] * (there != this) + [code] * bool(changed)


def settings_to_resume(run: Run, changes: Sequence[str]) -> Settings:
    """The changed settings of a run; a new engine must give the same bytes."""
    wanted = change_settings(run.settings, changes)
    before, after = run.settings.engine, wanted.engine
    check(
        arithmetic(before) == arithmetic(after),
        f"engine cannot be changed from {before} to {after} in an existing run: only "
        f"{', '.join(EXACT)} give the same bytes.",
    )
    return wanted


def arithmetic(engine: str) -> str:
    """A key that is the same for engines that give the same bytes."""
    return "exact" if engine in EXACT else engine
