"""Calls trackers, during a run (their errors never stop it) and for run folders afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wima.core.errors import RunError, UsageError, check, unknown
from wima.core.text import echo
from wima.runs.folder import Run, read_run
from wima.runs.track import BY_NAME
from wima.runs.track.base import Tracker
from wima.simulation.simulate import Record
from wima.storage.lock import is_running


class Trackers:
    """The trackers of a run.  If one fails, it is reported once and disabled; the run continues."""

    def __init__(self, names: Sequence[str]) -> None:
        self._made = make_trackers(names)
        self._live: dict[str, Tracker] = {}  # started and not failed

    def start(self, path: Path) -> None:
        """Send the run in a folder with the rounds that it already has."""
        if self._made:
            run = read_run(path)
            self._live = _notify(self._made, lambda tracker: _begin(tracker, run))

    def record(self, record: Record) -> None:
        """Send a round."""
        self._live = _notify(self._live, lambda tracker: tracker.record(record))

    def finish(self, state: str) -> None:
        """Send how the run ended; Ctrl-C stops waiting for that."""
        try:
            self._live = _notify(self._live, lambda tracker: tracker.finish(state))
        except KeyboardInterrupt:
            _warn("trackers were interrupted before they had written everything.")


def _notify(trackers: dict[str, Tracker], send: Callable[[Tracker], None]) -> dict[str, Tracker]:
    """Call `send` for each tracker; returns those that did not fail."""
    left = {}
    for name, tracker in trackers.items():
        try:
            send(tracker)
            left[name] = tracker
        except Exception as error:
            _warn(f"the tracker {name} failed and is disabled for this run. {_reason(error)}")
    return left


def make_trackers(names: Sequence[str]) -> dict[str, Tracker]:
    """Trackers by name; raises `UsageError` for unknown names and missing packages."""
    for name in names:
        if name not in BY_NAME:
            raise unknown("tracker", name, BY_NAME)
    return {name: BY_NAME[name]() for name in names}


def export(paths: Sequence[Path], names: Sequence[str]) -> Iterator[str]:
    """Send run folders to trackers; yields a line per run, then raises any errors."""
    make_trackers(names)  # refuses wrong names before anything is written
    wrong: list[Exception] = []
    for path in paths:
        try:
            line = _export(path, names)
        except (UsageError, RunError) as error:
            wrong.append(error)
        else:
            yield line
    if wrong:
        kind = UsageError if isinstance(wrong[0], UsageError) else RunError
        raise kind("\n".join(str(error) for error in wrong))


def _export(path: Path, names: Sequence[str]) -> str:
    run = read_run(path)
    check(not is_running(path), f"{path} is still running; wait until it ends, or interrupt it.")
    state = run.status["state"]
    for name, tracker in make_trackers(names).items():
        try:
            _begin(tracker, run)
            tracker.finish("interrupted" if state == "running" else state)
        except UsageError:
            raise
        except Exception as error:
            raise RunError(f"{name} could not record {path}. {_reason(error)}") from error
    return f"{path}: {run.t} rounds are in {', '.join(names)}."


def _begin(tracker: Tracker, run: Run) -> None:
    tracker.start(run)
    for record in run.records:
        tracker.record(record)


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no reason given'}"


def _warn(text: str) -> None:
    echo(f"Warning: {text}", sys.stderr)
