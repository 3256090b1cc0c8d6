"""The progress of a run: a live bar in terminals and notebooks, otherwise plain lines."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import TextColumn

from wima.core.progress import is_live, progress_bar
from wima.core.text import cell, printable
from wima.simulation.simulation import Record


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
