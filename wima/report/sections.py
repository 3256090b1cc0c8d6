"""A page of results beside the paper's, from the general to the particular.

First a figure and a table at a glance, then a section for each data set: its tables and notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wima.report.escaping import in_markdown as _md, markdown_table
from wima.report.glance import TITLE, beside_paper, glance, glance_notes
from wima.report.measure import Measure
from wima.report.names import proper
from wima.report.notes import gain_notes, notes
from wima.report.opening import draw_opening
from wima.report.tables import Entry, Table
from wima.report.texts import markdown

HOLM = "† The gain also excludes zero after Holm's correction for the number of intervals in its"
HOLM += " experiment:"


class Notes(NamedTuple):
    """The author's notes: general ones, and those on each data set."""

    general: str
    by_data: dict[str, str]


def split_notes(text: str, tables: Sequence[Table]) -> Notes:
    """Split off the sections whose heading is the name of a data set, such as `## FEMNIST`.

    If the paper has no numbers, all notes are general.
    """
    names = by_data(tables) if beside_paper(tables) else {}
    general, own = [], {}
    for section in re.split(r"(?m)^(?=## )", text):
        heading, _, rest = section.partition("\n")
        name = heading.removeprefix("## ").strip()
        if heading.startswith("## ") and name in names:
            own[name] = rest.strip()
        else:
            general.append(section)
    return Notes("".join(general).strip(), own)


def arranged(
    tables: Sequence[Table], own: Mapping[str, str], measure: Measure, folder: Path
) -> tuple[list[str], list[str]]:
    """The opening and the details of the page; both empty if the paper has no numbers.

    own: the notes on each data set; folder: where the figure is written.
    """
    found = beside_paper(tables)
    if not found:
        return [], []
    picture = draw_opening(found, folder, measure)
    parts = [f"![Curves at the paper's scale, and the paper's numbers]({picture})"] * bool(picture)
    told = "\n".join(f"- {_md(line)}" for line in glance_notes(found))
    table = markdown_table(*glance(found, measure)[:3])
    return [*parts, f"## {TITLE}", table, told], _details(tables, own, measure)


def by_data(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """For each data set, its columns as a table each; tables of regret cover all data sets."""
    found: dict[str, list[Table]] = {}
    for table in (table for table in tables if table.sheet.kind != "regret"):
        for name, columns in _columns(table).items():
            found.setdefault(name, []).extend(_part(table, name, columns, c) for c in columns)
    return found


def _columns(table: Table) -> dict[str, list[str]]:
    """The columns with runs on each data set, in the table's order."""
    found: dict[str, list[str]] = {}
    for column in table.sheet.columns:
        own = [entry for entry in table.entries.values() if entry.column == column]
        for name in dict.fromkeys(filter(None, map(_data, own))):
            found.setdefault(name, []).append(column)
    return found


def _data(entry: Entry) -> str:
    """The data set of an entry's runs; empty if it has no runs."""
    names = [member.run.settings.data.name for member in entry.members if member.run is not None]
    return proper(names[0]) if names else ""


def _part(table: Table, name: str, columns: Sequence[str], column: str) -> Table:
    """One of the columns on a data set; its name is in the title if there are several."""
    entries = {
        place: entry
        for place, entry in table.entries.items()
        if entry.column == column and _data(entry) == name
    }
    rows, _, headings = (set(names) for names in zip(*entries, strict=True))
    sheet = table.sheet._replace(
        title=f"{table.sheet.title}: {column}" if len(columns) > 1 else table.sheet.title,
        rows=[row for row in table.sheet.rows if row in rows],
        columns=[column],
        headings=[heading for heading in table.sheet.headings if heading in headings],
    )
    return table._replace(sheet=sheet, entries=entries)


def _details(tables: Sequence[Table], own: Mapping[str, str], measure: Measure) -> list[str]:
    """How to read the tables, then a section for each data set with its notes in `own`."""
    legend = "\n".join(f"- {_md(line)}" for line in _legend(tables))
    parts = ["## How to read the tables", legend]
    for name, pieces in by_data(tables).items():
        parts.append(f"## {_md(name)}")
        parts += ["##" + markdown(t, measure, _own_notes(t, measure)).rstrip("\n") for t in pieces]
        parts += [f"### Notes on {_md(name)}", own[name]] if name in own else []
    whole = [table for table in tables if table.sheet.kind == "regret"]
    return parts + ["#" + markdown(table, measure).rstrip("\n") for table in whole]


def _own_notes(table: Table, measure: Measure) -> list[str]:
    """The notes on a table that are not in the legend."""
    shared = {*gain_notes(table), table.sheet.note if table.sheet.scale else None}
    return [line for line in notes(table, measure) if line not in shared]


def _legend(tables: Sequence[Table]) -> list[str]:
    """The notes that several tables have in common, once each."""
    lines = [line for table in tables for line in gain_notes(table) if "Holm" not in line]
    counts = [
        f"{len(table.gains)} in {' '.join(filter(None, [table.sheet.name, table.sheet.scale]))}"
        for table in tables
        if table.gains
    ]
    lines.append(f"{HOLM} {', '.join(counts)}.")
    smaller = [table.sheet for table in tables if table.sheet.scale not in ("", "paper")]
    lines += [f"Scale {sheet.scale}: {sheet.note}" for sheet in smaller if sheet.note]
    return list(dict.fromkeys(lines))
