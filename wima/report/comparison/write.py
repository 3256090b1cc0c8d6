"""A comparison as a folder of its own: table, LaTeX, data and picture."""

from __future__ import annotations

import os
from pathlib import Path

from wima.core.errors import UsageError, check
from wima.core.version import __version__
from wima.report.comparison.paired import Comparison
from wima.report.comparison.picture import draw
from wima.report.comparison.texts import data, latex, markdown
from wima.report.gather import COMPARED
from wima.storage.files import written


def check_place(out: Path, force: bool) -> None:
    """Only a comparison may be replaced, and only if that is asked for."""
    if not os.path.lexists(out):
        return
    ours = (out / COMPARED).is_file()
    check(ours, f"{out} exists and is no comparison; choose another with --out.")
    check(force, f"The comparison {out} exists already; replace it with --force.")


def write_comparison(comparison: Comparison, out: Path, command: str, force: bool = False) -> None:
    """Write compare.md, .tex, .csv, .png and .pdf, all of them or none."""
    check_place(out, force)
    texts = {
        COMPARED: f"wima {__version__}\n",
        "compare.md": markdown(comparison, command),
        "compare.tex": latex(comparison, command),
        "compare.csv": data(comparison),
    }
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        for name, text in texts.items():  # names of files may be invalid Unicode
            (draft / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        draw(comparison, draft)
