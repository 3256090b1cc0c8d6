"""Executes many runs: missing ones are started, interrupted ones resumed, finished ones skipped.

Each worker process executes one run at a time.  A sweep stores nothing but the run folders, so the
same command resumes a sweep that was killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from wima.core.errors import UsageError
from wima.core.signals import ASKED, handled_by
from wima.experiments.expand import Job
from wima.runs.folder import read_run
from wima.storage.lock import is_running

ENDED = ("done", "diverged")  # states of runs that are not repeated


def end_of(path: Path) -> str:
    """The state in a run's folder; empty if it is missing or damaged, which resuming reports."""
    try:
        return str(read_run(path).status["state"]) if path.exists() else ""
    except UsageError:
        return ""


class State:
    """The state of a run in the sweep: waiting, running, or how it ended."""

    def __init__(self, job: Job, folder: Path, *, look: bool = True) -> None:
        self.job, self.path = job, folder / job.name
        self.state, self.message, self.t = "waiting", "", 0
        self.seconds, self.rounds_run = 0.0, 0  # in this sweep
        if look:
            self._look()

    @property
    def rounds(self) -> int:
        return self.job.settings.rounds

    def _look(self) -> None:
        """Read what an earlier sweep left."""
        if not self.path.exists():
            return
        try:
            run = read_run(self.path)
        except UsageError as error:
            self.state, self.message = "broken", str(error)
            return
        self.t = run.status["done"] if run.status["state"] in ENDED else run.t
        if run.status["state"] in ENDED:
            self.state, self.message = run.status["state"], run.status.get("reason", "")
        elif is_running(self.path):
            self.state, self.message = "busy", "another process is working on it"


class Sweep:
    """Executes jobs in worker processes; `states` is updated meanwhile."""

    def __init__(self, jobs: Iterable[Job], folder: Path, workers: int) -> None:
        self.folder = folder
        self.states = [State(job, folder) for job in jobs]
        self.stopping = False
        self._waiting = deque(state for state in self.states if state.state == "waiting")
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []
        count = min(workers, len(self._waiting))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def run(self) -> Iterator[None]:
        """Execute all jobs; yields a few times per second, for a display."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with handled_by(self._forward, ASKED):
            for thread in self._threads:
                thread.start()
            while any(thread.is_alive() for thread in self._threads):
                time.sleep(0.2)
                yield

    def _work(self) -> None:
        """The loop of a thread: send runs to a worker process, one by one."""
        while (state := self._next()) is not None:
            with self._start() as process:  # its input is closed at the end, so it exits
                while state is not None:
                    self._execute(state, process)
                    state = None if process.poll() is not None else self._next()

    def _next(self) -> State | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self.stopping else None

    def _start(self) -> subprocess.Popen[str]:
        # In a separate session, so that Ctrl-C reaches the worker only through `_forward`.
        process = subprocess.Popen(
            [sys.executable, "-m", "wima.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        with self._lock:
            self._processes.append(process)
        return process

    def _execute(self, state: State, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        request = {"path": str(state.path), "settings": state.job.settings.to_toml()}
        state.state, begin, first = "running", time.monotonic(), None
        with contextlib.suppress(OSError):  # a worker that died is detected below
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "end" in message:
                state.state, state.message = message["end"], message["message"]
                return
            if first is None:
                first, begin = message["t"], time.monotonic()
            state.t = message["t"]
            state.rounds_run, state.seconds = state.t - first, time.monotonic() - begin
        code = process.wait()
        state.state = "interrupted" if self.stopping else "failed"
        exited = f"its process exited with code {code}"
        state.message = exited if code >= 0 else f"killed by signal {-code}"

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Forward Ctrl-C and SIGTERM: runs finish their round and write a checkpoint."""
        self.stopping = True
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.send_signal(number)

    def time_left(self) -> float | None:
        return time_left(self.states, len(self._threads))


def time_left(states: list[State], parallel: int) -> float | None:
    """Estimated seconds until all runs are done, from the pace of similar runs."""
    known = [state for state in states if state.rounds_run]
    left = [s for s in states if s.state in ("waiting", "running")]
    if not known:
        return None
    total = sum((s.rounds - s.t) * _pace(s, known) for s in left)
    return total / max(1, min(parallel, len(left)))


def _pace(state: State, known: list[State]) -> float:
    """Seconds per round of the most similar runs."""
    settings = state.job.settings
    alike = [s for s in known if s.job.settings.algorithm == settings.algorithm]
    same = [s for s in alike if s.job.settings.data == settings.data]
    data = [s for s in known if s.job.settings.data == settings.data]
    chosen = same or data or known
    return sum(s.seconds for s in chosen) / sum(s.rounds_run for s in chosen)
