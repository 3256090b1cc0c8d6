"""Many runs: those that are missing are made, those that stopped go on, the rest is left alone.

Each worker process plays one run at a time.  Nothing is kept but the run folders, so a sweep that
was killed is started again with the same command.
"""

from __future__ import annotations

import contextlib
import json
import signal
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
from wima.experiments.expand import Job
from wima.runs.folder import read_run
from wima.storage.lock import is_running

ENDED = ("done", "diverged")  # what is not run again


class State:
    """Where a run of the sweep is: waiting, running, or as it ended."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / job.name
        self.state, self.message, self.t = "waiting", "", 0
        self.seconds, self.played = 0.0, 0  # of rounds that this sweep played
        self._look()

    @property
    def rounds(self) -> int:
        return self.job.settings.rounds

    def _look(self) -> None:
        """Find out what an earlier sweep left."""
        if not self.path.exists():
            return
        try:
            run = read_run(self.path)
        except UsageError as error:
            self.state, self.message = "broken", str(error)
            return
        self.t = run.status["done"] if run.status["state"] in ENDED else len(run.records)
        if run.status["state"] in ENDED:
            self.state, self.message = run.status["state"], run.status.get("reason", "")
        elif is_running(self.path):
            self.state, self.message = "busy", "another process is working on it"


class Sweep:
    """Plays jobs in worker processes; `states` can be watched meanwhile."""

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
        """Play everything; yields a few times per second, for a display."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._signals():
            for thread in self._threads:
                thread.start()
            while any(thread.is_alive() for thread in self._threads):
                time.sleep(0.2)
                yield

    def _work(self) -> None:
        """A thread: hand runs to a worker process, one by one."""
        while (state := self._next()) is not None:
            with self._start() as process:  # leaving it closes its input, which ends it
                while state is not None:
                    self._play(state, process)
                    state = None if process.poll() is not None else self._next()

    def _next(self) -> State | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self.stopping else None

    def _start(self) -> subprocess.Popen[str]:
        # A session of its own: Ctrl-C reaches the worker from here alone, once.
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

    def _play(self, state: State, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        asked = {"path": str(state.path), "settings": state.job.settings.to_toml()}
        state.state, begin, first = "running", time.monotonic(), None
        with contextlib.suppress(OSError):  # a worker that died is seen below
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            told: dict[str, Any] = json.loads(line)
            if "end" in told:
                state.state, state.message = told["end"], told["message"]
                return
            if first is None:
                first, begin = told["t"], time.monotonic()
            state.t = told["t"]
            state.played, state.seconds = state.t - first, time.monotonic() - begin
        code = process.wait()
        state.state = "interrupted" if self.stopping else "failed"
        state.message = f"its process ended with {code}" if code >= 0 else f"killed by {-code}"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are handed on: runs finish their round and keep a checkpoint."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            for process in self._processes:
                with contextlib.suppress(OSError):
                    process.send_signal(number)

        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def time_left(self) -> float | None:
        """Seconds until all is done, from the pace of runs like those that are left."""
        known = [state for state in self.states if state.played]
        left = [s for s in self.states if s.state in ("waiting", "running")]
        if not known:
            return None
        total = sum((s.rounds - s.t) * _pace(s, known) for s in left)
        return total / max(1, min(len(self._threads), len(left)))


def _pace(state: State, known: list[State]) -> float:
    """Seconds per round of the runs that are most like it."""
    settings = state.job.settings
    alike = [s for s in known if s.job.settings.algorithm == settings.algorithm]
    same = [s for s in alike if s.job.settings.data == settings.data]
    data = [s for s in known if s.job.settings.data == settings.data]
    chosen = same or data or known
    return sum(s.seconds for s in chosen) / sum(s.played for s in chosen)
