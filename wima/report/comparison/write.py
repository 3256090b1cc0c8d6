"""Writes a comparison to a folder: table, LaTeX, data and figure."""

from __future__ import annotations

from pathlib import Path

from wima.core.errors import UsageError
from wima.core.version import __version__
from wima.report.comparison.paired import Comparison
from wima.report.comparison.picture import draw
from wima.report.comparison.texts import data, latex, markdown
from wima.report.gather import COMPARED
from wima.storage.files import check_place, written


def check_out(out: Path, force: bool) -> None:
    """Raise unless `out` is free, or is a comparison and `force` is set."""
    check_place(out, COMPARED, "comparison", force)


def write_comparison(comparison: Comparison, out: Path, command: str, force: bool = False) -> None:
    """Write compare.md, .tex, .csv, .png and .pdf, either all of them or none."""
    check_out(out, force)
    texts = {
        COMPARED: f"wima {__version__}\n",
        "compare.md": markdown(comparison, command),
        "compare.tex": latex(comparison, command),
        "compare.csv": data(comparison),
    }
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        for name, text in texts.items():  # file names may be invalid Unicode
            (draft / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        draw(comparison, draft)
