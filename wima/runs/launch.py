"""Starts and resumes runs: their folder, progress, checkpoints, trackers and ends."""

import contextlib
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.progress import TextColumn
from safetensors.torch import save_file

from wima.core.errors import Diverged, RunError, UsageError, check
from wima.core.machine import keep_freed_memory
from wima.core.progress import is_live, progress_bar
from wima.core.signals import Interrupted, Pruned, StopRequest, forget_viewers
from wima.core.text import cell, echo, printable
from wima.core.vector import by_name
from wima.runs import checkpoint, folder
from wima.runs.build import build
from wima.runs.checkpoint import Snapshots
from wima.runs.identity import identity_of, only_new, origin
from wima.runs.own_code import IN_PYTHON, OWN
from wima.runs.record import RECORDS, RecordFiles, as_line, sums
from wima.runs.run import Run, is_intact, read_run
from wima.runs.settings import Settings
from wima.runs.track import Trackers
from wima.simulation.engines import NAMES
from wima.simulation.simulate import Record, Simulation
from wima.storage import manifests
from wima.storage.files import Lock, digest, replace_text, written
from wima.storage.segments import Segments


class Display:
    """Is told the progress of a run; this one shows nothing."""

    def __init__(self, rounds: int, done: int = 0) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def update(self, record: Record) -> None:
        """Show a finished round."""


MakeDisplay: TypeAlias = Callable[[int, int], Display]  # total rounds, rounds already done


class ProgressDisplay(Display):
    """Shows each round's accuracy, the pace and the time left."""

    def __init__(self, rounds: int, done: int = 0, console: Console | None = None) -> None:
        self.rounds, self._done, self.console = rounds, done, console or Console()
        self._begin, self._lines = time.perf_counter(), max(1, rounds // 10)
        self._latest: Record | None = None  # with metrics
        self._is_live = is_live(self.console)
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
            self._latest = record
        last = record.t == self.rounds
        if not self._is_live and record.t % self._lines and not last:
            return
        latest = printable(_describe(self._latest)) if self._latest else ""
        seconds = time.perf_counter() - self._begin
        rounds_run = record.t - self._done
        pace = f"{rounds_run / max(seconds, 1e-9):.1f} rounds/s"
        if self._is_live:
            self._bar.update(self._task, completed=record.t, description=latest, pace=pace)
            return
        left = seconds / rounds_run * (self.rounds - record.t)
        line = f"round {record.t}/{self.rounds}  {latest}  {pace}  {left:.0f} s left"
        self.console.print(cell(line), soft_wrap=True)


def _describe(record: Record) -> str:
    """The first metric of each model, in percent if it is accuracy, and its window if it varies."""
    parts = []
    for model, metrics in record.metrics.items():
        name, value = next(iter(metrics.items()))
        shown = f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4f}"
        window = f" (W {record.windows[model]})" if model in record.windows else ""
        parts.append(f"{model}{window} {shown}")
    return "  ".join(parts)


def launch(
    settings: Settings,
    path: Path,
    progress: MakeDisplay = ProgressDisplay,
    command: list[str] | None = None,
    report: Callable[[str], object] = print,
    **overrides: Any,
) -> Run:
    """Run the settings and record the run at `path`; everything is checked before writing.

    command: repeats the run, if it differs from what was typed.
    report: receives the plan of memory, and the engine that `auto` chose.
    overrides: replaces what the settings name; see `build`.
    """
    folder.check_free(path)
    trackers = Trackers(settings.trackers)
    try:
        plan: list[str] = []
        with build(settings, path / folder.FOLDER, plan.append, **overrides) as simulation:
            check_rank_0(simulation)
            if simulation.engine in NAMES:  # fix the choice of `auto`, which may differ next time
                settings = settings.model_copy(update={"engine": simulation.engine})
            identity = identity_of(settings, simulation)
            facts = {**simulation.facts(), "identity": only_new(identity), "origin": origin()}
            if command:
                facts["command"] = command
            lock = folder.create_folder(path, settings, facts)
            with contextlib.suppress(OSError):  # of a full disk
                for line in plan:  # after all checks
                    report(line)
            Runner(simulation, path, settings, identity, lock, trackers, progress).run()
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before the first round; nothing was written.") from None
    return read_run(path)


def resume(
    path: Path,
    progress: MakeDisplay = ProgressDisplay,
    changes: Sequence[str] = (),
    trust: bool = False,
    names: Collection[str] = (),
    **overrides: Any,
) -> Run:
    """Resume a run from its newest intact checkpoint; from the start if there is none.

    changes: settings, as `key=value`, that affect how the run is computed but not its result.
    trust: import code that the settings name, whoever made the folder; names: only this code.
    """
    folder.check_no_links(path)
    read_run(path)  # raises if it is none
    lock = Lock(path)
    try:
        run = read_run(path)  # again: another process may just have ended it
        if run.status["state"] == "done" and is_intact(run):
            raise UsageError(f"The run in {path} is done; there is nothing to resume.")
        wanted = checkpoint.settings_to_resume(run, changes, trust, names)
        trackers = Trackers(wanted.trackers)
        engine = run.environment.get("engine", wanted.engine)
        if engine in NAMES and wanted.engine != "auto":  # it may have been changed since
            engine = wanted.engine
        check(
            engine in NAMES or "make" in overrides,
            f"The run in {path} used the engine {engine!r}, which `wima resume` does not have; "
            "resume it the way it was started.",
        )
        settings = wanted.model_copy(update={"engine": engine})
        with build(settings, path / folder.FOLDER, **overrides) as simulation:
            check_rank_0(simulation)
            identity = identity_of(settings, simulation)
            runner = Runner(simulation, path, settings, identity, lock, trackers, progress)
            remarks = runner.restore(run)
            if changes:
                replace_text(path / "settings.toml", wanted.to_toml())
            with contextlib.suppress(OSError):  # of a full disk
                for remark in remarks:
                    echo(remark)
                print(f"Resuming after {simulation.t} of {simulation.rounds} rounds.")
            runner.run()
    finally:
        lock.release()
    return read_run(path)


class Runner:
    """Runs the remaining rounds and writes the folder; however they end, the folder records it."""

    def __init__(
        self,
        simulation: Simulation,
        path: Path,
        settings: Settings,
        identity: dict[str, Any],
        lock: Lock,
        trackers: Trackers,
        display: MakeDisplay,
    ) -> None:
        self.simulation, self.path, self.settings = simulation, path, settings
        self.state, self.done = "running", simulation.t  # rounds recorded
        self._lock, self._trackers, self._display = lock, trackers, display
        self._identity = identity
        self._store = simulation.store or Segments(path / folder.FOLDER)
        layout = simulation.setup.task.layout
        self._snapshots = Snapshots(path, settings.snapshots, simulation.w, layout)
        self._saves = bool(settings.checkpoint_every or settings.checkpoint_minutes)
        self._saved, self._saved_at = simulation.t, time.monotonic()
        self._stop = StopRequest()

    def restore(self, run: Run) -> list[str]:
        """Restore the newest checkpoint that is intact and has intact records; returns remarks."""
        records, remarks = self._newest(run)
        self.done = self._saved = self.simulation.t
        folder.reopen_folder(self.path, self.settings, self.done, records)
        manifests.discard_after(self._store, self.done)
        self._snapshots.discard_after(self.done)
        return remarks

    def _newest(self, run: Run) -> tuple[Path, list[str]]:
        checkpoints, wrong = manifests.find(self._store)
        remarks = checkpoint.check_same(run, checkpoints, self._identity)
        remarks += [f"Skipped a checkpoint: {reason}." for reason in wrong]
        remarks += checkpoint.remarks_on(run)
        files = [self.path / RECORDS, self.path / folder.COPY]
        counts = [saved.t for saved in checkpoints]
        known = {file: sums(file, counts) for file in files}
        for saved in checkpoints:
            for file in files:
                if known[file].get(saved.t) == saved.extra["records"]:
                    checkpoint.load(self.simulation, self._store, saved, self._snapshots)
                    return file, remarks
                remarks.append(f"{file} is damaged before round {saved.t}.")
        return files[0], remarks

    def run(self) -> None:
        """Run, close the folder and notify the trackers."""
        keep_freed_memory()
        self.records = RecordFiles(self.path, self.path / folder.COPY if self._saves else None)
        with self._stop.awaited():
            try:
                self._trackers.start(self.path)
                self._rounds()
            except KeyboardInterrupt:
                self._close("interrupted")
                raise Interrupted(self._interrupted()) from None
            except Interrupted as stop:
                self._close(stop.state, stop.reason)
                raise
            except Exception as error:
                self._fail(error)
            finally:
                self._trackers.finish(self.state)

    def _rounds(self) -> None:
        simulation = self.simulation
        with self._display(simulation.rounds, simulation.t) as display:
            for record in simulation:
                if self.settings.snapshots:
                    self._snapshots.update(record.t, simulation.watch.vector("plain"))
                self.append(record)  # last: a recorded round has its snapshot
                if self.settings.trackers:
                    self._trackers.record(record)
                self._show(display, record)
                if self._stop.signal is not None:
                    self._save()
                    raise Interrupted(self._interrupted(), 128 + self._stop.signal)
                if self._is_due():
                    self._save()
        checksums = self._save_models()
        if self._saves:
            self._save()
        self._close("done", sums=checksums)

    def append(self, record: Record) -> None:
        """Record a round."""
        self.records.append(as_line(record), {"t": record.t, "seconds": round(record.seconds, 6)})
        self.done = record.t

    def _show(self, display: Display, record: Record) -> None:
        """Show progress; a closed terminal does not end the run."""
        try:
            display.update(record)
        except Pruned:
            self._save()
            raise
        except (OSError, SystemExit):  # rich raises SystemExit for a broken pipe
            forget_viewers()

    def _is_due(self) -> bool:
        rounds, minutes = self.settings.checkpoint_every, self.settings.checkpoint_minutes
        by_rounds = bool(rounds) and self.simulation.t - self._saved >= rounds
        return by_rounds or (bool(minutes) and time.monotonic() - self._saved_at >= 60 * minutes)

    def _save(self) -> None:
        """Write a checkpoint, unless this round has one."""
        if self._saved == self.simulation.t and self.simulation.t:
            return
        extra = {"records": self.records.save()}
        checkpoint.save(self.simulation, self._store, self._identity, extra, self._snapshots)
        self._saved, self._saved_at = self.simulation.t, time.monotonic()

    def _save_models(self) -> dict[str, str]:
        """Write the final models, all of them or none; checksums of the records and models."""
        checksums = {RECORDS: self.records.save()}
        with written(self.path / "models", folder=True) as draft:
            for name, w in self.simulation.vectors().items():
                file = f"{name}.safetensors"
                save_file(by_name(w, self.simulation.setup.task.layout), draft / file)
                checksums[f"models/{file}"] = digest(draft / file)
        return checksums

    def _fail(self, error: Exception) -> None:
        """Save a checkpoint, record the reason, and raise."""
        diverged, rounds = isinstance(error, Diverged), self.simulation.rounds
        recorded = self.simulation.between_rounds and self.done == self.simulation.t
        if recorded and not diverged:
            with contextlib.suppress(Exception):  # the disk may be the cause
                self._save()
        self._close("diverged" if diverged else "failed", str(error))
        details = self.path / "error.txt"
        with contextlib.suppress(OSError):
            text = printable(traceback.format_exc())  # of paths that are not UTF-8, too
            details.write_text(text, encoding="utf-8")
        after = f"after {self.done} of {rounds} rounds: {error}"
        if diverged:
            raise Diverged(f"The run diverged {after}") from error
        raise RunError(f"The run failed {after}\nDetails are in {details}.") from error

    def _close(self, state: str, reason: str = "", sums: dict[str, str] | None = None) -> None:
        """Write how the run ended, if possible, and release the lock."""
        self.state = state
        with contextlib.suppress(OSError):
            self.records.close()
        with contextlib.suppress(RunError):
            folder.write_status(self.path, self.settings, state, self.done, reason, sums)
        self._lock.release()

    def _interrupted(self) -> str:
        command = IN_PYTHON if self.settings.data.name == OWN else f"`wima resume {self.path}`"
        return (
            f"Interrupted after {self.done} of {self.simulation.rounds} rounds; the records so far "
            f"are in {self.path}. {command} resumes the run."
        )


def works_for_rank_0(settings: Settings) -> bool:
    """Work for rank 0 until its run ends; False if this process is rank 0, or not distributed.

    Checks that all ranks have the same settings.  The others write and print nothing.
    """
    if settings.engine != "distributed":
        return False
    from wima.simulation.engines.ranks import join  # imported here: only distributed runs need it

    group = join()
    group.agree({**settings.in_results(), "device": settings.device})
    if group.rank > 0:
        with build(settings.model_copy(update={"averagers": []})) as simulation:
            for _ in simulation:
                pass
    return group.rank > 0


def check_rank_0(simulation: Simulation) -> None:
    """Refuse to write a run that belongs to another process."""
    check(
        not simulation.is_worker_rank,
        "Only rank 0 of a distributed run writes a folder; start the ranks with `wima run` or "
        "`wima resume`, which handle this, one run at a time.",
    )
