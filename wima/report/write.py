"""`wima report`: a folder with tables, figures, data and one page, from run folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from wima.core.errors import UsageError, check
from wima.core.text import command_line
from wima.core.version import __version__
from wima.experiments.sheet import Sheet
from wima.report.below import below
from wima.report.figures import draw_table
from wima.report.gather import MARKER, Found, Omitted, gather
from wima.report.groups import runs_table
from wima.report.measure import Measure
from wima.report.page import page
from wima.report.panels import draw_sections
from wima.report.sections import arranged, split_notes
from wima.report.tables import Table, sheet_table
from wima.report.texts import (
    data_csv,
    grid_csv,
    latex,
    markdown,
    markdown_page,
    section_latex,
    table_csv,
)
from wima.storage.files import check_place, written
from wima.storage.reading import read_text


class Report(NamedTuple):
    """What was written."""

    folder: Path
    tables: list[Table]
    runs: int
    omitted: list[Omitted]


def write_report(
    paths: Sequence[Path],
    out: Path,
    measure: Measure | None = None,
    force: bool = False,
    notes: Path | None = None,
) -> Report:
    """Read the runs and sheets at these paths and write the report, completely or not at all.

    notes: a Markdown file that is placed before the tables, except for sections on a data set.
    """
    measure = measure or Measure()
    check_measure(measure)
    check_out(out, force)
    text = "" if notes is None else read_notes(notes)
    found = gather(paths, measure.metric)
    if not found.runs:
        reasons = "\n".join(f"  {item.path}: {item.reason}" for item in found.omitted[:10])
        raise UsageError(f"There are no runs to report on.\n{reasons}")
    tables, repeats = make_tables(found, measure)
    omitted = [*found.omitted, *repeats]
    own = split_notes(text, tables)
    facts = _facts(_title(out, paths)) | {"notes": own.general, "by_data": own.by_data}
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        _fill(draft, tables, omitted, measure, facts)
    return Report(out, tables, len(found.runs), omitted)


def check_measure(measure: Measure) -> None:
    """Raise if a value is impossible."""
    last, target = measure.last, measure.target
    check(last is None or last > 0, f"--last must be a positive number of rounds, got {last}.")
    if measure.is_share and target is not None:
        hint = "--target is an accuracy between 0 and 1, for example 0.8"
        check(0 < target <= 1, f"{hint}; got {target:g}.")


def check_out(out: Path, force: bool) -> None:
    """Raise unless `out` is free, or is a report and `force` is set."""
    check_place(out, MARKER, "report", force)


def read_notes(path: Path) -> str:
    try:
        return read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"Cannot read the notes {path}: {why}.") from error


def make_tables(found: Found, measure: Measure) -> tuple[list[Table], list[Omitted]]:
    """A table for each sheet, and one for runs that are in no sheet."""
    sheets = sorted(_with_scales(found.sheets).items(), key=lambda item: _rank(item[1]))
    tables = [sheet_table(path, sheet, found, measure) for path, sheet in sheets]
    shown = {id(run) for table in tables for run in table.runs()}
    others = [run for run in found.runs.values() if id(run) not in shown]
    repeats: list[Omitted] = []
    if others:
        table, repeats = runs_table(others, measure)
        tables.append(table)
    return _with_slugs(tables), repeats


def _with_scales(sheets: dict[Path, Sheet]) -> dict[Path, Sheet]:
    """The sheets, with their scale in the title if several have the same title."""
    titles = Counter(sheet.title for sheet in sheets.values())
    return {
        path: sheet._replace(title=f"{sheet.title}, scale {sheet.scale}")
        if titles[sheet.title] > 1 and sheet.scale
        else sheet
        for path, sheet in sheets.items()
    }


def _rank(sheet: Sheet) -> tuple[bool, bool, str]:
    """A sort key: the paper's tables first, then its figures, by number, then other sheets."""
    return not sheet.shown, not sheet.shown.startswith("Table"), sheet.shown


def _with_slugs(tables: Sequence[Table]) -> list[Table]:
    """The tables with unique names that are safe in file systems."""
    taken: set[str] = set()
    named = []
    for table in tables:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", table.sheet.name)[:60].strip("-") or "table"
        numbered = (base if n == 1 else f"{base}-{n}" for n in range(1, len(tables) + 1))
        slug = next(name for name in numbered if name.lower() not in taken)
        taken.add(slug.lower())
        named.append(table._replace(slug=slug))
    return named


def _fill(
    folder: Path,
    tables: list[Table],
    omitted: list[Omitted],
    measure: Measure,
    facts: dict[str, Any],
) -> None:
    _write(folder / MARKER, f"wima {__version__}\n")
    for name in ("tables", "figures"):
        (folder / name).mkdir()
    files: dict[str, list[str]] = {}
    writers = {"md": markdown, "tex": latex, "csv": table_csv}
    for table in tables:
        for ending, writer in writers.items():
            path = folder / "tables" / f"{table.slug}.{ending}"
            _write(path, writer(table, measure))
        texts = [f"tables/{table.slug}.{ending}" for ending in writers]
        texts += _write_sections(folder, table)
        drawn = draw_table(table, folder / "figures", measure)
        drawn += draw_sections(table, folder / "figures")
        files[table.slug] = [*texts, *(f"figures/{name}" for name in drawn)]
    _write(folder / "data.csv", data_csv(tables))
    parts = arranged(tables, facts["by_data"], measure, folder)
    _write(folder / "report.md", markdown_page(tables, omitted, measure, facts, *parts))
    _write(folder / "index.html", page(tables, omitted, measure, facts, files))


def _write_sections(folder: Path, table: Table) -> list[str]:
    """Write LaTeX and CSV of the sections below a table; returns the file names."""
    names = []
    for section in below(table):
        texts = {"tex": section_latex(table, section), "csv": grid_csv(section.grid)}
        for ending, text in texts.items():
            names.append(f"tables/{table.slug}-{section.name}.{ending}")
            _write(folder / names[-1], text)
    return names


def _write(path: Path, text: str) -> None:
    """Write text; file names in it may be invalid Unicode, which is written as escapes."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _facts(title: str) -> dict[str, Any]:
    """Where the page comes from."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"title": title, "made": made, "version": __version__, "command": command_line()}


def _title(out: Path, paths: Sequence[Path]) -> str:
    name = paths[0].resolve().name if len(paths) == 1 else out.resolve().name
    return f"Report on {name}"
