"""From settings to a finished run folder, with progress and checkpoints on the way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self, TypeAlias

from wima.core.errors import Diverged, RunError, UsageError, check
from wima.engine import NAMES
from wima.engine.malloc import keep_freed_memory
from wima.runs import checkpoint
from wima.runs.build import build
from wima.runs.folder import (
    Run,
    RunFolder,
    check_free,
    environment,
    first_lines,
    read_run,
    run_name,
)
from wima.runs.progress import Progress
from wima.runs.settings import Settings
from wima.runs.trackers.dispatch import Trackers
from wima.simulation.simulation import Record, Simulation
from wima.storage import manifests
from wima.storage.lock import Lock
from wima.storage.manifests import Saved
from wima.storage.segments import Segments

FOLDER = "checkpoints"  # in the run folder


class Following(Protocol):
    """Is notified of each round that is done."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, record: Record) -> None: ...


Follow: TypeAlias = Callable[[int, int], Following]  # rounds in all, rounds done before


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """The user stopped the run; the message says how far it came."""

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code  # of the process


def default_path(settings: Settings) -> Path:
    """The folder of a run unless another is given."""
    return Path("runs") / run_name(settings)


def launch(settings: Settings, path: Path, progress: Follow = Progress, **instead: Any) -> Run:
    """Run the settings and record the run at `path`; nothing is written before all is checked.

    instead: what takes the place of things that the settings name, see `build`.
    """
    check_free(path)
    trackers = Trackers(settings.trackers)
    try:
        with build(settings, path / FOLDER, print, **instead) as simulation:
            folder = RunFolder.create(path, settings, simulation.facts())
            Runner(simulation, folder, settings, trackers, progress).run()
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before the first round; nothing was written.") from None
    return read_run(path)


def resume(path: Path, progress: Follow = Progress, **instead: Any) -> Run:
    """Resume a run from its newest intact checkpoint; from the start if there is none."""
    run = read_run(path)
    lock = Lock(path)
    try:
        if run.status["state"] == "done":
            raise UsageError(f"The run in {path} is done; there is nothing to resume.")
        trackers = Trackers(run.settings.trackers)
        engine = run.environment.get("engine", run.settings.engine)
        check(
            engine in NAMES or "make" in instead,
            f"The run in {path} was run by engine {engine!r}, which `wima resume` does not "
            "have; start it again the way it was started.",
        )
        settings = run.settings.model_copy(update={"engine": engine})
        with build(settings, path / FOLDER, **instead) as simulation:
            store = simulation.store or Segments(path / FOLDER)
            found, wrong = manifests.find(store)
            usable = [c for c in found if _has_records(path, c)]
            if usable:
                _check_same(path, usable[0], _identity(settings, simulation))
                checkpoint.load(simulation, store, usable[0])
            folder = RunFolder.reopen(path, settings, lock, simulation.t)
            manifests.discard_after(store, simulation.t)
            for reason in wrong:
                print(f"Skipped a checkpoint: {reason}.")
            print(f"Goes on after {simulation.t} of {simulation.rounds} rounds.")
            Runner(simulation, folder, settings, trackers, progress).run()
    finally:
        lock.release()
    return read_run(path)


def _has_records(path: Path, found: Saved) -> bool:
    """Whether the records up to the checkpoint are there as they were written."""
    lines = first_lines(path / "records.jsonl", found.t)
    whole = lines.count(b"\n") == found.t
    return whole and hashlib.sha256(lines).hexdigest() == found.extra.get("records")


def _identity(settings: Settings, simulation: Simulation) -> dict[str, Any]:
    """What must be the same for a run to resume to the same bytes."""
    around = environment()
    versions = {name: around[name] for name in ("wima", "torch", "numpy")}
    return {**settings.in_results(), "engine": simulation.engine, **versions}


def _check_same(path: Path, found: Saved, now: dict[str, Any]) -> None:
    then = found.identity
    differ = [
        f"{name}: {then.get(name)!r} then, {now.get(name)!r} now"
        for name in sorted({*then, *now})
        if then.get(name) != json.loads(json.dumps(now.get(name)))
    ]
    if differ:
        raise UsageError(
            f"The checkpoints in {path} were written by another configuration or version, so the "
            "run cannot go on to the same result:\n  " + "\n  ".join(differ)
        )


class Runner:
    """Runs the rounds that are left; however that ends, the folder says so."""

    def __init__(
        self,
        simulation: Simulation,
        folder: RunFolder,
        settings: Settings,
        trackers: Trackers,
        progress: Follow,
    ) -> None:
        self.simulation, self.folder, self.settings = simulation, folder, settings
        self.trackers, self._progress = trackers, progress
        self._store = simulation.store or Segments(folder.path / FOLDER)
        self._saved, self._when = simulation.t, time.monotonic()
        self._stop: int | None = None  # the signal that asks to end

    def run(self) -> None:
        """Run, and when the folder is closed, notify the trackers."""
        keep_freed_memory()
        try:
            self._run()
        finally:
            self.trackers.finish(self.folder.state)

    def _run(self) -> None:
        try:
            self.trackers.start(self.folder.path)
            with self._signals():
                self._rounds()
        except KeyboardInterrupt:
            self.folder.close("interrupted")
            raise Interrupted(self._interrupted()) from None
        except Interrupted:
            self.folder.close("interrupted")
            raise
        except Exception as error:
            self._fail(error)

    def _rounds(self) -> None:
        simulation, folder = self.simulation, self.folder
        with self._progress(simulation.rounds, simulation.t) as progress:
            for record in simulation:
                folder.append(record)
                self.trackers.record(record)
                progress.update(record)
                if self._stop is not None:
                    self._save()
                    raise Interrupted(self._interrupted(), 128 + self._stop)
                if self._due():
                    self._save()
        folder.save_models(simulation.vectors(), simulation.setup.task.layout)
        if self.settings.checkpoint_every or self.settings.checkpoint_minutes:
            self._save()
        folder.close("done")

    def _due(self) -> bool:
        rounds, minutes = self.settings.checkpoint_every, self.settings.checkpoint_minutes
        by_rounds = bool(rounds) and self.simulation.t - self._saved >= rounds
        return by_rounds or (bool(minutes) and time.monotonic() - self._when >= 60 * minutes)

    def _save(self) -> None:
        if self._saved == self.simulation.t and self.simulation.t:
            return
        extra = {"records": self.folder.records_sum()}
        identity = _identity(self.settings, self.simulation)
        checkpoint.save(self.simulation, self._store, identity, extra)
        self._saved, self._when = self.simulation.t, time.monotonic()

    def _fail(self, error: Exception) -> None:
        """Keep what was reached, write down the reason, and raise."""
        path, done = self.folder.path, self.folder.done
        recorded = self.simulation.between_rounds and done == self.simulation.t
        if recorded and not isinstance(error, Diverged):
            with contextlib.suppress(Exception):  # the disk may be what failed
                self._save()
        self.folder.close("diverged" if isinstance(error, Diverged) else "failed", str(error))
        details = path / "error.txt"
        with contextlib.suppress(OSError):
            details.write_text(traceback.format_exc(), encoding="utf-8")
        rounds = self.simulation.rounds
        if isinstance(error, Diverged):
            raise Diverged(f"The run diverged after {done} of {rounds} rounds: {error}") from error
        raise RunError(
            f"The run failed after {done} of {rounds} rounds: {error}\nDetails are in {details}."
        ) from error

    def _interrupted(self) -> str:
        path, done, rounds = self.folder.path, self.folder.done, self.simulation.rounds
        return (
            f"Interrupted after {done} of {rounds} rounds; the records up to there are in {path}. "
            f"`wima resume {path}` goes on."
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """A first Ctrl-C or SIGTERM lets the round finish; a second one ends it at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop is not None:
                raise KeyboardInterrupt
            self._stop = number

        try:
            before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread, which alone can handle signals
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
