"""The progress of a sweep: a live table in a terminal, otherwise a line per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from wima.core.text import cell
from wima.experiments.sweep import State

UNDER_WAY = ("waiting", "running")


class Runs(Protocol):
    """Runs that are executed by a sweep or by other processes."""

    @property
    def states(self) -> list[State]: ...

    def run(self) -> Iterator[None]: ...

    def time_left(self) -> float | None: ...


def follow(sweep: Runs, console: Console | None = None) -> None:
    """Run the sweep and show its progress."""
    console = console or Console()
    shown = {state.job.name for state in sweep.states if state.state not in UNDER_WAY}
    if shown:
        console.print(f"Already finished: {_counts(sweep)}.", highlight=False)
    if not console.is_terminal:
        for _ in sweep.run():
            _print_ended(sweep, console, shown)
        _print_ended(sweep, console, shown)
        return
    with Live(_table(sweep), console=console, refresh_per_second=4, transient=True) as live:
        for _ in sweep.run():
            live.update(_table(sweep))
            _print_ended(sweep, live.console, shown)
    _print_ended(sweep, console, shown)


def summary(sweep: Runs) -> str:
    """The number of runs in each state, and a line for each that did not succeed."""
    bad = [s for s in sweep.states if s.state not in ("done", "diverged", "waiting", "interrupted")]
    lines = [f"Runs: {_counts(sweep)}."]
    lines += [f"  {s.state}: {s.path}: {_first_line(s.message)}" for s in bad]
    return "\n".join(lines)


def _print_ended(sweep: Runs, console: Console, shown: set[str]) -> None:
    for state in sweep.states:
        if state.job.name in shown or state.state in UNDER_WAY:
            continue
        shown.add(state.job.name)
        why = f" ({_first_line(state.message)})" if state.message else ""
        left = f"; {_left(sweep)} left" if _left(sweep) else ""
        line = f"{state.state:<11} {state.job.name}{why}  [{len(shown)}/{len(sweep.states)}{left}]"
        console.print(cell(line), soft_wrap=True)


def _table(sweep: Runs) -> Table:
    """The current runs, and the number of runs in each state."""
    title = f"{_counts(sweep)}" + (f"; {_left(sweep)} left" if _left(sweep) else "")
    table = Table(title=title, title_justify="left")
    table.add_column("run")
    table.add_column("round", justify="right")
    table.add_column("s per round", justify="right")
    for state in sweep.states:
        if state.state == "running":
            table.add_row(cell(state.job.name), f"{state.t}/{state.rounds}", _seconds(state))
    return table


def _seconds(state: State) -> str:
    return f"{state.seconds / state.rounds_run:.2f}" if state.rounds_run else ""


def _counts(sweep: Runs) -> str:
    counts = Counter(state.state for state in sweep.states)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _left(sweep: Runs) -> str:
    seconds = sweep.time_left()
    if seconds is None:
        return ""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""
