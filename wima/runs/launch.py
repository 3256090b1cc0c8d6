"""Starts and resumes runs, with progress and checkpoints."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from rich.console import Console
from rich.progress import TextColumn

from wima.core.errors import Diverged, RunError, UsageError, check
from wima.core.progress import is_live, progress_bar
from wima.core.signals import Interrupted, Pruned, StopRequest, forget_viewers
from wima.core.text import cell, echo, printable
from wima.runs import checkpoint
from wima.runs.build import build
from wima.runs.folder import (
    COPY,
    FOLDER,
    Run,
    RunFolder,
    check_free,
    check_no_links,
    is_intact,
    read_run,
    run_name,
)
from wima.runs.identity import check_same, identity_of, own_code, remarks_on
from wima.runs.own_code import IN_PYTHON, OWN
from wima.runs.ranks import check_rank_0, settings_to_resume
from wima.runs.record import RECORDS, sums
from wima.runs.settings import Settings
from wima.runs.snapshots import Snapshots
from wima.runs.track import Trackers
from wima.simulation.engines import NAMES
from wima.simulation.engines.shared import keep_freed_memory
from wima.simulation.simulate import Record, Simulation
from wima.storage import manifests
from wima.storage.files import replace_text
from wima.storage.lock import Lock
from wima.storage.segments import Segments


class Progress:
    """Shows each round's accuracy, the pace and the time left."""

    def __init__(self, rounds: int, done: int = 0, console: Console | None = None) -> None:
        self.rounds, self._done, self.console = rounds, done, console or Console()
        self._begin, self._latest, self._lines = time.perf_counter(), "", max(1, rounds // 10)
        self._bar = progress_bar(
            "round {task.completed:.0f}/{task.total:.0f}",
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[pace]}"),
            console=self.console,
        )
        self._task = self._bar.add_task("", total=rounds, pace="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, record: Record) -> None:
        """Show a finished round."""
        if record.metrics:
            self._latest = printable(_describe(record))
        seconds = time.perf_counter() - self._begin
        rounds_run = record.t - self._done
        pace = f"{rounds_run / max(seconds, 1e-9):.1f} rounds/s"
        self._bar.update(self._task, completed=record.t, description=self._latest, pace=pace)
        last = record.t == self.rounds
        if not is_live(self.console) and (record.t % self._lines == 0 or last):
            left = seconds / rounds_run * (self.rounds - record.t)
            line = f"round {record.t}/{self.rounds}  {self._latest}  {pace}  {left:.0f} s left"
            self.console.print(cell(line), soft_wrap=True)


class Silent:
    """Shows nothing."""

    def __init__(self, rounds: int, done: int = 0) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def update(self, record: Record) -> None: ...


def _describe(record: Record) -> str:
    """The first metric of each model, in percent if it is accuracy, and its window if it varies."""
    parts = []
    for model, metrics in record.metrics.items():
        name, value = next(iter(metrics.items()))
        shown = f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4f}"
        window = f" (W {record.windows[model]})" if model in record.windows else ""
        parts.append(f"{model}{window} {shown}")
    return "  ".join(parts)


class Following(Protocol):
    """Is notified after each round."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, record: Record) -> None: ...


Follow: TypeAlias = Callable[[int, int], Following]  # total rounds, rounds already done


def default_path(settings: Settings) -> Path:
    """The default folder of a run."""
    return Path("runs") / run_name(settings)


def launch(
    settings: Settings,
    path: Path,
    progress: Follow = Progress,
    command: list[str] | None = None,
    report: Callable[[str], object] = print,
    **instead: Any,
) -> Run:
    """Run the settings and record the run at `path`; everything is checked before writing.

    command: repeats the run, if it differs from what was typed.
    report: receives the plan of memory and disk, and the engine that `auto` chose.
    instead: replaces what the settings name; see `build`.
    """
    check_free(path)
    trackers = Trackers(settings.trackers)
    try:
        plan: list[str] = []
        with build(settings, path / FOLDER, plan.append, **instead) as simulation:
            check_rank_0(simulation)
            if simulation.engine in NAMES:  # fix the choice of `auto`, which may differ next time
                settings = settings.model_copy(update={"engine": simulation.engine})
            facts: dict[str, Any] = {**simulation.facts(), **own_code(settings)}
            if command:
                facts["command"] = command
            folder = RunFolder.create(path, settings, facts)
            for line in plan:  # after all checks
                report(line)
            identity = identity_of(settings, simulation)
            snapshots = _snapshots(path, settings, simulation)
            Runner(simulation, folder, settings, identity, trackers, progress, snapshots).run()
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before the first round; nothing was written.") from None
    return read_run(path)


def resume(
    path: Path, progress: Follow = Progress, changes: Sequence[str] = (), **instead: Any
) -> Run:
    """Resume a run from its newest intact checkpoint; from the start if there is none.

    changes: settings, as `key=value`, that affect how the run is computed but not its result.
    """
    check_no_links(path)
    run = read_run(path)
    lock = Lock(path)
    try:
        if run.status["state"] == "done" and is_intact(run):
            raise UsageError(f"The run in {path} is done; there is nothing to resume.")
        wanted = settings_to_resume(run, changes)
        trackers = Trackers(wanted.trackers)
        engine = run.environment.get("engine", wanted.engine)
        if engine in NAMES and wanted.engine != "auto":  # it may have been changed since
            engine = wanted.engine
        check(
            engine in NAMES or "make" in instead,
            f"The run in {path} used the engine {engine!r}, which `wima resume` does not have; "
            "resume it the way it was started.",
        )
        settings = wanted.model_copy(update={"engine": engine})
        with build(settings, path / FOLDER, **instead) as simulation:
            check_rank_0(simulation)
            snapshots = _snapshots(path, settings, simulation)
            identity = identity_of(settings, simulation)
            start = _start(run, simulation, snapshots, identity)
            if changes:
                replace_text(path / "settings.toml", wanted.to_toml())
            folder = RunFolder.reopen(path, settings, lock, simulation.t, start.records)
            manifests.discard_after(start.store, simulation.t)
            snapshots.discard_after(simulation.t)
            for remark in start.remarks:
                echo(remark)
            print(f"Resuming after {simulation.t} of {simulation.rounds} rounds.")
            Runner(simulation, folder, settings, identity, trackers, progress, snapshots).run()
    finally:
        lock.release()
    return read_run(path)


def _snapshots(path: Path, settings: Settings, simulation: Simulation) -> Snapshots:
    return Snapshots(path, settings.snapshots, simulation.w, simulation.setup.task.layout)


class Start(NamedTuple):
    """Where a run is resumed from."""

    store: Segments
    records: Path  # a file with the records up to that round
    remarks: list[str]


def _start(run: Run, simulation: Simulation, snapshots: Snapshots, now: dict[str, Any]) -> Start:
    """Restore the newest checkpoint that is intact and has intact records."""
    store = simulation.store or Segments(run.path / FOLDER)
    found, wrong = manifests.find(store)
    check_same(run, found, now)
    remarks = [f"Skipped a checkpoint: {reason}." for reason in wrong] + remarks_on(run)
    files = [run.path / RECORDS, run.path / COPY]
    there = {file: sums(file, [saved.t for saved in found]) for file in files}
    for saved in found:
        for file in files:
            if there[file].get(saved.t) == saved.extra["records"]:
                checkpoint.load(simulation, store, saved, snapshots)
                return Start(store, file, remarks)
            remarks.append(f"{file} is damaged before round {saved.t}.")
    return Start(store, files[0], remarks)


class Runner:
    """Runs the remaining rounds; however they end, the folder records it."""

    def __init__(
        self,
        simulation: Simulation,
        folder: RunFolder,
        settings: Settings,
        identity: dict[str, Any],
        trackers: Trackers,
        progress: Follow,
        snapshots: Snapshots,
    ) -> None:
        self.simulation, self.folder, self.settings = simulation, folder, settings
        self.trackers, self._progress, self._snapshots = trackers, progress, snapshots
        self._identity = identity
        self._store = simulation.store or Segments(folder.path / FOLDER)
        self._saved, self._when = simulation.t, time.monotonic()
        self._stop = StopRequest()

    def run(self) -> None:
        """Run, close the folder and notify the trackers."""
        keep_freed_memory()
        with self._stop.awaited():
            try:
                self._run()
            finally:
                self.trackers.finish(self.folder.state)

    def _run(self) -> None:
        try:
            self.trackers.start(self.folder.path)
            self._rounds()
        except KeyboardInterrupt:
            self.folder.close("interrupted")
            raise Interrupted(self._interrupted()) from None
        except Interrupted as stop:
            self.folder.close(stop.state, stop.reason)
            raise
        except Exception as error:
            self._fail(error)

    def _rounds(self) -> None:
        simulation, folder = self.simulation, self.folder
        with self._progress(simulation.rounds, simulation.t) as progress:
            for record in simulation:
                self._snapshots.update(record.t, simulation.watch.vector("plain"))
                folder.append(record)  # last: a recorded round has its snapshot
                self.trackers.record(record)
                self._show(progress, record)
                if self._stop.signal is not None:
                    self._save()
                    raise Interrupted(self._interrupted(), 128 + self._stop.signal)
                if self._due():
                    self._save()
        folder.save_models(simulation.vectors(), simulation.setup.task.layout)
        if self.settings.checkpoint_every or self.settings.checkpoint_minutes:
            self._save()
        folder.close("done")

    def _show(self, progress: Following, record: Record) -> None:
        """Show progress; a closed terminal does not end the run."""
        try:
            progress.update(record)
        except Pruned:
            self._save()
            raise
        except (OSError, SystemExit):  # rich raises SystemExit for a broken pipe
            forget_viewers()

    def _due(self) -> bool:
        rounds, minutes = self.settings.checkpoint_every, self.settings.checkpoint_minutes
        by_rounds = bool(rounds) and self.simulation.t - self._saved >= rounds
        return by_rounds or (bool(minutes) and time.monotonic() - self._when >= 60 * minutes)

    def _save(self) -> None:
        if self._saved == self.simulation.t and self.simulation.t:
            return
        extra = {"records": self.folder.records.save()}
        checkpoint.save(self.simulation, self._store, self._identity, extra, self._snapshots)
        self._saved, self._when = self.simulation.t, time.monotonic()

    def _fail(self, error: Exception) -> None:
        """Save a checkpoint, record the reason, and raise."""
        path, done = self.folder.path, self.folder.done
        recorded = self.simulation.between_rounds and done == self.simulation.t
        if recorded and not isinstance(error, Diverged):
            with contextlib.suppress(Exception):  # the disk may be the cause
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
        command = IN_PYTHON if self.settings.data.name == OWN else f"`wima resume {path}`"
        return (
            f"Interrupted after {done} of {rounds} rounds; the records so far are in {path}. "
            f"{command} resumes the run."
        )
