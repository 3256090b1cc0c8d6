"""Executes many runs: missing ones are started, interrupted ones resumed, finished ones skipped.

Each worker process executes one run at a time.  A sweep stores nothing but the run folders, so the
same command resumes a sweep that was killed.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from wima.core.errors import UsageError
from wima.core.signals import ASKED, handled_by
from wima.core.text import cell
from wima.core.workers import Exited, Worker, end
from wima.experiments.plan import Job
from wima.runs.identity import conflicts
from wima.runs.run import read_run
from wima.storage.files import is_running

ENDED = ("done", "diverged")  # states of runs that are not repeated
ELSEWHERE = "elsewhere"  # another process executes the run
UNDER_WAY = ("waiting", "running", ELSEWHERE)


def end_of(path: Path) -> str:
    """The state in a run's folder; empty if it is missing or damaged, which resuming reports."""
    try:
        return str(read_run(path).status["state"]) if path.exists() else ""
    except UsageError:
        return ""


def conflicts_in(paths: Iterable[Path]) -> dict[Path, str]:
    """Runs of other data or code than the newest; see `conflicts`."""
    runs = []
    for path in paths:
        with contextlib.suppress(UsageError):  # missing or damaged
            runs.append(read_run(path))
    return conflicts(runs)


class RunState:
    """The state of one of many runs: waiting, running, running elsewhere, or how it ended."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path, self.rounds = job, folder / job.name, job.settings.rounds
        self.state, self.message, self.t = "waiting", "", 0
        self.seconds, self.rounds_run = 0.0, 0  # in this process
        self._first: tuple[int, float] | None = None  # round and time from which the pace counts
        self._changed = time.monotonic()  # when its last round was seen

    def count(self, t: int) -> None:
        """Update the round and the pace."""
        now = time.monotonic()
        if self._first is None or t < self._first[0]:  # new, or resumed from an earlier round
            self._first = t, now
            self._changed = now
        elif t != self.t:
            self._changed = now
        self.t, self.rounds_run, self.seconds = t, t - self._first[0], now - self._first[1]

    def quiet(self) -> float:
        """Seconds since its last round was seen."""
        return time.monotonic() - self._changed

    def read_folder(self) -> None:
        """Read what an earlier sweep, or another one, left."""
        self.state, self.message = "waiting", ""
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
            self.state, self.message = ELSEWHERE, "another process executes it"


def states_of(jobs: Iterable[Job], folder: Path) -> list[RunState]:
    """The states that the folders of runs have, if no other process changes them."""
    states = [RunState(job, folder) for job in jobs]
    for state in states:
        state.read_folder()
    mark_conflicts(states)
    return states


def mark_conflicts(states: Iterable[RunState]) -> None:
    """Mark finished runs of other data or code than the newest: one table must not mix them."""
    ended = {state.path: state for state in states if state.state in ENDED}
    for path, reason in conflicts_in(ended).items():
        ended[path].state = "broken"
        ended[path].message = f"{reason}; remove it, and repeat the command"


class Runs(ABC):
    """Many runs and their progress: a live table in a terminal, otherwise a line per run."""

    states: list[RunState]
    parallel: int  # runs that are executed at the same time
    stopping = False  # the user interrupted

    @abstractmethod
    def run(self) -> Iterator[None]:
        """Update the states until all runs have ended; yields a few times per second."""

    def follow(self, console: Console | None = None) -> None:
        """Run, and show the progress."""
        console = console or Console()
        printed = {state.job.name for state in self.states if state.state not in UNDER_WAY}
        if printed:
            console.print(f"Already finished: {self._counts()}.", highlight=False)
        if not console.is_terminal:
            for _ in self.run():
                self._print_ended(console, printed)
        else:
            with Live(self.table(), console=console, refresh_per_second=4, transient=True) as live:
                for _ in self.run():
                    live.update(self.table())
                    self._print_ended(live.console, printed)
        self._print_ended(console, printed)

    def _print_ended(self, console: Console, printed: set[str]) -> None:
        for state in self.states:
            if state.state == ELSEWHERE and state.message:
                line = f"{ELSEWHERE:<11} {state.job.name} (another process executes it; awaited)"
                console.print(cell(line), soft_wrap=True)
                state.message = ""  # once
            if state.job.name in printed or state.state in UNDER_WAY:
                continue
            printed.add(state.job.name)
            why = f" ({_first_line(state.message)})" if state.message else ""
            count = f"{len(printed)}/{len(self.states)}{self._left()}"
            line = f"{state.state:<11} {state.job.name}{why}  [{count}]"
            console.print(cell(line), soft_wrap=True)

    def table(self) -> Table:
        """The current runs, and the number of runs in each state."""
        table = Table(title=self._counts() + self._left(), title_justify="left")
        table.add_column("run")
        table.add_column("round", justify="right")
        table.add_column("s per round", justify="right")
        for state in self.states:
            if state.state == "running":
                pace = f"{state.seconds / state.rounds_run:.2f}" if state.rounds_run else ""
                table.add_row(cell(state.job.name), f"{state.t}/{state.rounds}", pace)
        return table

    def summary(self) -> str:
        """The number of runs in each state, and a line for each that did not succeed."""
        fine = ("done", "diverged", "waiting", "interrupted", ELSEWHERE)
        bad = [state for state in self.states if state.state not in fine]
        lines = [f"Runs: {self._counts()}."]
        lines += [f"  {s.state}: {s.path}: {_first_line(s.message)}" for s in bad]
        return "\n".join(lines)

    def _counts(self) -> str:
        counts = Counter(state.state for state in self.states)
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())

    def _left(self) -> str:
        """The estimated time until all runs are done, from the pace of similar runs."""
        timed = [state for state in self.states if state.rounds_run]
        left = [state for state in self.states if state.state in UNDER_WAY]
        if not timed:
            return ""
        total = sum((s.rounds - s.t) * _pace(s, timed) for s in left)
        minutes = round(total / max(1, min(self.parallel, len(left))) / 60)
        hours, minutes = divmod(minutes, 60)
        return f"; {hours} h {minutes} min left" if hours else f"; {minutes} min left"


def _pace(state: RunState, timed: list[RunState]) -> float:
    """Seconds per round of the most similar runs."""
    settings = state.job.settings
    data = [s for s in timed if s.job.settings.data == settings.data]
    same = [s for s in data if s.job.settings.algorithm == settings.algorithm]
    chosen = same or data or timed
    return sum(s.seconds for s in chosen) / sum(s.rounds_run for s in chosen)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


class Sweep(Runs):
    """Runs that worker processes of this machine execute."""

    def __init__(self, jobs: Iterable[Job], folder: Path, workers: int) -> None:
        self.folder = folder
        self.states = states_of(jobs, folder)
        self._waiting = deque(state for state in self.states if state.state == "waiting")
        self.parallel = min(workers, sum(state.state in UNDER_WAY for state in self.states))
        self._current: dict[Worker, RunState] = {}

    def run(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with handled_by(self._forward, ASKED), DefaultSelector() as selector:
            while self._current or (self._left_to_do() and not self.stopping):
                while self._waiting and not self.stopping and len(self._current) < self.parallel:
                    # In a session of its own, so that Ctrl-C reaches it only through `_forward`.
                    worker = Worker("wima.experiments.worker", independent=True, quiet=True)
                    selector.register(worker, EVENT_READ)
                    self._start_next(worker)
                for key, _ in selector.select(0.2):
                    worker = key.fileobj  # type: ignore[assignment]
                    if not self._receive(worker):
                        selector.unregister(worker)
                        del self._current[worker]
                        end([worker], patience=None)
                yield
        mark_conflicts(self.states)

    def _left_to_do(self) -> bool:
        """Whether runs have not ended; those that another process has left are waiting again."""
        for state in self.states:
            if state.state == ELSEWHERE and not is_running(state.path):
                state.read_folder()
                self._waiting.extend([state] if state.state == "waiting" else [])
        return any(state.state in UNDER_WAY for state in self.states)

    def _start_next(self, worker: Worker) -> None:
        state = self._current[worker] = self._waiting.popleft()
        state.state = "running"
        with contextlib.suppress(Exited):  # `_receive` reports it
            worker.send({"path": str(state.path), "settings": state.job.settings.to_toml()})

    def _receive(self, worker: Worker) -> bool:
        """Update the state of a worker's run; returns whether the worker continues."""
        state = self._current[worker]
        try:
            messages = [message.header for message in worker.receive()]
        except Exited:
            code = worker.process.wait()
            exited = f"its process exited with code {code}"
            state.state = "interrupted" if self.stopping else "failed"
            state.message = exited if code >= 0 else f"killed by signal {-code}"
            return False
        for message in messages:
            if "end" not in message:
                state.count(message["t"])
                continue
            state.state, state.message = message["end"], message["message"]
            if self.stopping or not self._waiting or state.state == "interrupted":
                return False
            self._start_next(worker)
        return True

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Forward Ctrl-C and SIGTERM: runs finish their round and write a checkpoint."""
        self.stopping = True
        for worker in self._current:
            with contextlib.suppress(OSError):
                worker.process.send_signal(number)
