"""The state of runs that other processes execute, from their folders and SLURM's queue.

Nothing is written.  Locks are tested only where no process is expected: testing holds the lock for
a moment, and a job that starts just then would be refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from wima.core.errors import UsageError
from wima.core.signals import ASKED, handled_by
from wima.experiments.expand import Job
from wima.experiments.queue import Queue
from wima.experiments.sweep import ENDED, State, time_left
from wima.runs.record import TIMES
from wima.storage.lock import is_running
from wima.storage.reading import last_lines, read_text

FINAL = (*ENDED, "broken", "failed", "interrupted", "pruned")  # states that no longer change
QUIET = 60.0  # seconds without a round, after which a run's process may be dead


class Watch:
    """Follows the progress of runs until all have ended or the user interrupts (`stopping`)."""

    def __init__(self, jobs: Iterable[Job], folder: Path) -> None:
        self.states = [State(job, folder, look=False) for job in jobs]
        self.stopping = False
        self._queue = Queue(folder)
        self._begun: dict[str, tuple[int, float]] = {}  # run -> round and time when first seen
        self._changed: dict[str, float] = {}  # run -> when its last round was seen
        self.look()

    def run(self) -> Iterator[None]:
        """Poll until all runs have ended; yields twice per second, for a display."""
        with handled_by(self._stop, ASKED):
            while not self.stopping and any(s.state not in FINAL for s in self.states):
                time.sleep(0.5)
                self.look()
                yield

    def look(self) -> None:
        """Read the folders of all runs that have not ended."""
        self._queue.refresh()  # first: jobs that have left the queue have written everything
        for state in self.states:
            if state.state not in (*ENDED, "broken"):
                self._look(state)

    def time_left(self) -> float | None:
        return time_left(self.states, sum(s.state == "running" for s in self.states))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _look(self, state: State) -> None:
        has_job = self._queue.has(state.job.name)
        try:
            status = _status(state.path)
        except UsageError as error:
            state.state, state.message = "broken", str(error)
            return
        state.state, state.message = status["state"], status["reason"]
        if state.state in ENDED:
            state.t = status["done"]
        elif state.state == "running":
            self._count(state)
        if has_job and state.state in ("failed", "interrupted"):  # in an earlier job
            state.state, state.message = "waiting", ""
        elif self._is_gone(state, has_job):
            state.state = "failed"
            state.message = self._queue.reason(state.job.name) if has_job is False else "killed"

    def _is_gone(self, state: State, has_job: bool | None) -> bool:
        """Whether a run that should be running has no process."""
        if state.state == "waiting":
            return has_job is False
        quiet = time.monotonic() - self._changed.get(state.job.name, time.monotonic()) > QUIET
        expected = has_job is False or (has_job is None and quiet)
        return state.state == "running" and expected and not is_running(state.path)

    def _count(self, state: State) -> None:
        """Update the run's last round, and its pace since it was first seen."""
        name, now = state.job.name, time.monotonic()
        t = _last_round(state.path)
        if t != state.t or name not in self._changed:
            self._changed[name] = now
        state.t = t
        first, begin = self._begun.setdefault(name, (t, now))
        if t < first:  # resumed from an earlier round
            first, begin = self._begun[name] = t, now
        state.rounds_run, state.seconds = t - first, now - begin


def _status(path: Path) -> dict[str, Any]:
    """The content of status.json; \"waiting\" if there is no folder."""
    if not path.exists():
        return {"state": "waiting", "reason": "", "done": 0}
    try:
        status = json.loads(read_text(path / "status.json"))
        return {"state": status["state"], "reason": status["reason"], "done": status["done"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None


def _last_round(path: Path) -> int:
    """The round in the last complete line of times.jsonl."""
    try:
        return int(json.loads(next(last_lines(path / TIMES), b'{"t": 0}'))["t"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
