"""Checkpoints, from which a run is resumed, and snapshots, from which any window can be computed.

A checkpoint has everything that the next round depends on, and the identity of the run, so that a
run is resumed only to the same result.  A snapshot is the mean of
the models of consecutive rounds, saved as an ordinary model: `wima average` makes the mean of any
number of them, and `wima advise` compares windows.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from wima.core.errors import RunError, check
from wima.core.vector import Layout, Vector, by_name, one_thread
from wima.data.sets import REMARKS
from wima.runs.folder import SNAPSHOTS, environment
from wima.runs.identity import FACTS, VERSIONS, check_trusted, differences
from wima.runs.own_code import OWN, source
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
        "unusable": simulation.unusable,
        "kinds": _kinds(simulation),
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

    kinds = content.get("kinds", _kinds(simulation))
    if kinds != _kinds(simulation):
        message = f"has the averages {kinds}, but those of the run are {_kinds(simulation)}"
        raise RunError(f"The checkpoint of round {saved.t} does not match: it {message}.")
    try:
        simulation.watch.load(content, store, tensor)
        like = (state.w, state.server, state.opt)
        w, server, opt = decode(content["state"], like, tensor, {})
        state.memory.load(store, content["clients"], w[: simulation.setup.task.trained])
        simulation.state = state._replace(w=w, server=server, opt=opt, clip=content.get("clip"))
        simulation.t, simulation.unusable = saved.t, int(content.get("unusable", 0))
        if snapshots is not None:  # the unfinished sum, if snapshots were on
            read = partial(store.read, content["vectors"])
            kept = decode(content.get("snapshot", {"value": None}), None, read, {})
            snapshots.start(saved.t, Sum(*kept) if kept else None)
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"The checkpoint of round {saved.t} does not match: {reason}") from error


# What a run may be resumed with.


def check_same(run: Run, found: Sequence[Saved], now: Mapping[str, Any]) -> list[str]:
    """Refuse to resume to a different result; returns remarks.

    Before the first checkpoint, the folder says what the run was started with.
    """
    then = dict(found[0].identity if found else known_of(run))
    if arithmetic(then.get("engine", now["engine"])) == arithmetic(now["engine"]):
        then["engine"] = now["engine"]
    start = then.get("part.start", now["part.start"])
    if found and start != now["part.start"]:
        del then["part.start"]
    differ = differences(then, now)
    if not found and run.settings.run_id != run.status.get("settings", run.settings.run_id):
        differ.append("settings.toml was changed")
    if then.get("data_checksum", now["data_checksum"]) != now["data_checksum"]:
        differ += [REMARKS[name] for name in (run.settings.data.name,) if name in REMARKS]
    refuse(run, differ, "cannot be resumed to the same result")
    remark = "The first model would now be made in another way; the run keeps the one it had."
    return [remark] * (start != now["part.start"])


def known_of(run: Run) -> dict[str, Any]:
    """What a folder says about the identity of its run."""
    facts = {name: run.environment.get(name) for name in (*VERSIONS, *FACTS)}
    known = {name: value for name, value in facts.items() if value is not None}
    return {**run.settings.in_results(), **known, **run.identity}


def refuse(run: Run, differ: Sequence[str], why: str) -> None:
    """Raise if anything differs."""
    own = run.settings.data.name == OWN
    check(
        not differ,
        f"The run in {run.path} was started with different settings, data, code or versions, so it "
        f"{why}:\n  "
        + "\n  ".join(differ)
        + "\nRestore what changed, or start a new run: "
        + (
            "choose another out=." if own else f"`wima run {run.path / 'settings.toml'} --out ...`."
        ),
    )


def _kinds(simulation: Simulation) -> dict[str, str]:
    """Name -> class of every average."""
    return {name: type(a).__name__ for name, a in simulation.watch.averagers.items()}


def remarks_on(run: Run) -> list[str]:
    """Changes since the run started that do not prevent resuming it."""
    here = environment()
    then = {**here, **run.environment}
    there, this = (f"{e['processor']} with {e['instructions']}" for e in (then, here))
    processor = (
        f"The run started on another processor ({there}; here: {this}). From here on, records and "
        "models match those of the other processor up to rounding, not bit by bit."
    )
    sums = run.environment.get("own_code", {})  # of earlier versions, which compared the bytes
    files = {name: file for name in sums if (file := source(name))}
    changed = [name for name, file in files.items() if digest(file) != sums[name]]
    code = f"The code of {', '.join(changed)} has changed; the remaining rounds use the new code."
    return [processor] * (there != this) + [code] * bool(changed)


def settings_to_resume(
    run: Run, changes: Sequence[str], trust: bool = False, names: Collection[str] = ()
) -> Settings:
    """The changed settings of a run; a new engine must give the same bytes.

    trust, names: see `check_trusted`.
    """
    check_trusted(run, trust, names)
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
