"""The result of a run, on the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from wima.cli.tables import summary_table
from wima.report.summary import draw_curves, summarize
from wima.runs.folder import Run


def show(run: Run, path: Path) -> None:
    """Print a finished run's table, and draw its curves into its folder."""
    draw_curves(run, path / "curves.png")
    Console().print(summary_table(summarize(run)))
    print(f"Records: {path / 'records.jsonl'}")
    print(f"Picture: {path / 'curves.png'}")
