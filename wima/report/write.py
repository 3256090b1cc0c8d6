"""`wima report`: a folder with tables, figures, data and one page, from run folders."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from wima.core.errors import UsageError, check
from wima.core.measure import Measure, check_measure
from wima.core.text import command_line
from wima.core.version import __version__
from wima.experiments.sheet import Sheet
from wima.report.figures import draw_picture, draw_table
from wima.report.inputs import MARKER, Data, Omitted, gather
from wima.report.notes import below
from wima.report.page import page
from wima.report.paper_page import Notes, beside_paper, draw_opening, markdown_page, split_notes
from wima.report.table import Table, all_runs, grid, runs_table, sheet_table
from wima.report.text import csv_text, data_csv, latex, markdown, section_latex, write
from wima.storage.files import check_place, read_text, written


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
    check_place(out, MARKER, "report", force)
    text = "" if notes is None else read_notes(notes)
    data = gather(paths, measure.metric, "report on")
    measure = measure.directed(run.environment for run in data.runs.values())
    tables, repeats = make_tables(data, measure)
    omitted = [*data.omitted, *repeats]
    name = paths[0].resolve().name if len(paths) == 1 else out.resolve().name
    facts = {
        "title": f"Report on {name}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "command": command_line(),
    }
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        _fill(draft, tables, omitted, facts, split_notes(text, tables))
    return Report(out, tables, len(data.runs), omitted)


def read_notes(path: Path) -> str:
    check(
        find_spec("markdown_it") is not None,
        "--notes needs markdown-it-py, which is not installed: pip install 'wima[notes]'",
    )
    try:
        return read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"Cannot read the notes {path}: {why}.") from error


def make_tables(data: Data, measure: Measure) -> tuple[list[Table], list[Omitted]]:
    """A table for each sheet, and one for runs that are in no sheet."""

    def rank(sheet: Sheet) -> tuple[bool, bool, str]:
        """The paper's tables first, then its figures, by number, then other sheets."""
        return not sheet.shown, not sheet.shown.startswith("Table"), sheet.shown

    titles = Counter(sheet.title for sheet in data.sheets.values())
    tables = []
    for path, sheet in sorted(data.sheets.items(), key=lambda item: rank(item[1])):
        if titles[sheet.title] > 1 and sheet.scale:
            sheet = sheet._replace(title=f"{sheet.title}, scale {sheet.scale}")
        tables.append(sheet_table(path, sheet, data, measure))
    shown = {run.number for run in all_runs(tables)}
    others = [run for run in data.runs.values() if run.number not in shown]
    repeats: list[Omitted] = []
    if others:
        table, repeats = runs_table(others, measure)
        tables.append(table)
    taken: set[str] = set()  # names that are safe in file systems
    named = []
    for table in tables:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", table.sheet.name)[:60].strip("-") or "table"
        numbered = (base if n == 1 else f"{base}-{n}" for n in range(1, len(tables) + 1))
        slug = next(name for name in numbered if name.lower() not in taken)
        taken.add(slug.lower())
        named.append(table._replace(slug=slug))
    return named, repeats


def _fill(
    folder: Path,
    tables: Sequence[Table],
    omitted: Sequence[Omitted],
    facts: dict[str, str],
    author: Notes,
) -> None:
    write(folder / MARKER, f"wima {__version__}\n")
    for name in ("tables", "figures"):
        (folder / name).mkdir()
    files: dict[str, list[str]] = {}
    for table in tables:
        slug, figures = table.slug, folder / "figures"
        texts = {f"{slug}.md": markdown(table), f"{slug}.tex": latex(table)}
        texts[f"{slug}.csv"] = csv_text(*grid(table)[1:3])
        drawn = draw_table(table, figures)
        for section in below(table):
            stem = f"{slug}-{section.name}"
            texts[f"{stem}.tex"] = section_latex(table, section)
            texts[f"{stem}.csv"] = csv_text(*section.grid[1:3])
            if section.picture is not None and section.picture.panels:
                drawn += draw_picture(section.picture, table.sheet.headings, figures, stem)
        for name, text in texts.items():
            write(folder / "tables" / name, text)
        files[slug] = [f"tables/{name}" for name in texts] + [f"figures/{name}" for name in drawn]
    write(folder / "data.csv", data_csv(tables))
    picture = draw_opening(beside_paper(tables), folder)
    write(folder / "report.md", markdown_page(tables, omitted, facts, author, picture))
    write(folder / "index.html", page(tables, omitted, facts, author, files))
