"""A table as rows of strings, for every kind of file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isnan
from typing import NamedTuple

from wima.report.measure import Measure, megabytes
from wima.report.regret import regret_lines
from wima.report.tables import PLAIN, Entry, Table

GAIN = "gain of "  # followed by a heading


class Grid(NamedTuple):
    """A table of strings; the first `labels` columns are names, the others numbers."""

    labels: int
    header: list[str]
    lines: list[list[str]]
    best: Collection[tuple[int, int]] = ()  # line and column of the best model in each place


def grid(table: Table, measure: Measure) -> Grid:
    """Our numbers, with the paper's number and the difference in parentheses.

    With one column: a line per row.  With several: a line per row and model, as in the paper.
    There is a column for seeds only if their number varies.
    """
    if table.sheet.kind == "regret":
        return Grid(2, *regret_lines(table, measure))
    return _wide(table, measure) if len(table.sheet.columns) == 1 else _long(table, measure)


def common_seeds(table: Table) -> str:
    """The seeds of all numbers in a table, such as `3 seeds`; empty if they differ."""
    found = {entry.basis for entry in table.entries.values() if entry.seeds}
    return found.pop() if len(found) == 1 else ""


def _wide(table: Table, measure: Measure) -> Grid:
    sheet = table.sheet
    column = sheet.columns[0]
    gained = [h for h in sheet.headings if h != PLAIN and PLAIN in sheet.headings]
    names = [n for h in sheet.headings for n in ([h, GAIN + h] if h in gained else [h])]
    lines: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    told = [] if common_seeds(table) else ["seeds"]
    for row in sheet.rows:
        entries = {h: table.entry(row, column, h) for h in sheet.headings}
        leaders = _leaders(entries, measure)
        best |= {(len(lines), 1 + names.index(heading)) for heading in leaders}
        cells = []
        for heading, entry in entries.items():
            gains = [gain(table, entry, measure)] if heading in gained else []
            cells += [value(entry, measure), *gains]
        lines.append([row, *cells, *([_seeds(entries.values())] if told else [])])
    return Grid(1, [column, *names, *told], lines, best)


def _long(table: Table, measure: Measure) -> Grid:
    sheet = table.sheet
    lines: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    told = [] if common_seeds(table) else ["seeds"]
    for row in sheet.rows:
        places = [{h: table.entry(row, c, h) for h in sheet.headings} for c in sheet.columns]
        leaders = [_leaders(place, measure) for place in places]
        for heading in sheet.headings:
            entries = [place[heading] for place in places]
            if not any(entries):
                continue
            best |= {(len(lines), 2 + i) for i, names in enumerate(leaders) if heading in names}
            seeds = [_seeds(entries)] if told else []
            lines.append([row, heading, *(value(e, measure) for e in entries), *seeds])
            gains = [gain(table, entry, measure) for entry in entries]
            if any(gains):
                lines.append([row, GAIN + heading, *gains, *("" for _ in told)])
    return Grid(2, ["", "", *sheet.columns, *told], lines, best)


def _leaders(entries: Mapping[str, Entry | None], measure: Measure) -> set[str]:
    """The models with the best number as shown; none if all are equal."""
    shown = {
        heading: round(measure.sign * measure.factor * entry.mean, measure.digits)
        for heading, entry in entries.items()
        if entry is not None and not isnan(entry.mean)
    }
    if len(set(shown.values())) < 2:
        return set()
    return {heading for heading, number in shown.items() if number == max(shown.values())}


def target_grid(table: Table, measure: Measure) -> Grid | None:
    """The rounds that each model needs to reach the target, if there is one."""
    sheet = table.sheet
    if measure.target is None or sheet.kind == "regret":
        return None
    if len(sheet.columns) == 1:
        [column] = sheet.columns
        cells = [[table.entry(row, column, h) for h in sheet.headings] for row in sheet.rows]
        lines = [[r, *map(reached_text, own)] for r, own in zip(sheet.rows, cells, strict=True)]
        return Grid(1, [column, *sheet.headings], lines)
    places = [(row, heading) for row in sheet.rows for heading in sheet.headings]
    found = {(r, h): [table.entry(r, c, h) for c in sheet.columns] for r, h in places}
    lines = [[*place, *map(reached_text, entries)] for place, entries in found.items()]
    return Grid(2, ["", "", *sheet.columns], [line for line in lines if any(line[2:])])


def reached_text(entry: Entry | None) -> str:
    """The mean first round at the target, over the seeds that reach it, with the mean MB sent."""
    if entry is None or not entry.seeds:
        return ""
    reached = [m.score.reached for m in entry.members if m.counts and m.score]
    rounds = [t for t in reached if t is not None]
    if not rounds:
        return "never"
    some = f" ({len(rounds)} of {len(reached)} seeds)" if len(rounds) < len(reached) else ""
    sent = "" if isnan(entry.sent) else f", {megabytes(entry.sent)} MB"
    return f"{sum(rounds) / len(rounds):.0f}{sent}{some}"


def value(entry: Entry | None, measure: Measure) -> str:
    """The number of an entry, or the text shown instead, followed by the paper's number."""
    if entry is None:
        return ""
    ours = entry.text or measure.spread(entry.mean, entry.deviation)
    if entry.printed is None:
        return ours
    paper = entry.printed.value
    if paper is None or isnan(entry.mean):
        return f"{ours} (N/A)" if paper is None else f"{ours} ({paper:.2f})"
    return f"{ours} ({paper:.2f}, {measure.number(entry.mean - paper / 100, signed=True)})"


def gain(table: Table, entry: Entry | None, measure: Measure) -> str:
    """The gain over plain with its interval, followed by the paper's gain."""
    if entry is None or entry.gain is None:
        return ""
    paper = paper_gain(table, entry)
    behind = "" if paper is None else f" ({measure.number(paper / 100, signed=True)})"
    return measure.interval(entry.gain) + behind


def paper_gain(table: Table, entry: Entry) -> float | None:
    """The difference between the paper's two numbers, in points."""
    plain = table.entry(entry.row, entry.column, PLAIN)
    if entry.heading == PLAIN or plain is None or not (entry.printed and plain.printed):
        return None
    own, base = entry.printed.value, plain.printed.value
    return None if own is None or base is None else own - base


def _seeds(entries: Collection[Entry | None]) -> str:
    """The seeds of a line: one text if all entries agree, else one for each, in order."""
    answers = [entry.basis if entry else "none" for entry in entries]
    filled = {entry.basis for entry in entries if entry}
    return filled.pop() if len(filled) == 1 else " / ".join(answers)
