"""The progress bar of every command."""

from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(
    label: str, *details: ProgressColumn, width: int | None = None, console: Console | None = None
) -> Progress:
    """A bar with label, details and time left; removed at the end, shown only if `is_live`.

    width: of the bar; None fills the line.
    """
    console = console or Console()
    columns = (TextColumn(label), BarColumn(bar_width=width), *details, TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not is_live(console), transient=True)


def is_live(console: Console) -> bool:
    """Whether a bar can be updated in place: in a terminal, or a notebook with ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
