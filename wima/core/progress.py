"""The progress bar of every command."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(
    label: str, *details: ProgressColumn, width: int | None = None, console: Console | None = None
) -> Progress:
    """Label, bar, details, time left; removed at the end, and never shown without a terminal.

    width: of the bar; None fills the line.
    """
    console = console or Console()
    columns = (TextColumn(label), BarColumn(bar_width=width), *details, TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
