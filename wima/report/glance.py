"""The paper's gains beside ours at a glance: a line for each data set and method."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isnan
from typing import NamedTuple

from wima.experiments.plan import scales
from wima.report.grid import Grid, paper_gain
from wima.report.measure import Measure
from wima.report.names import proper
from wima.report.statistics import Interval
from wima.report.tables import PLAIN, Entry, Table

HEADER = ["data set", "method", "paper's gain", "our gain", "same sign", "seeds", "scale"]
TITLE = "At a glance"


class Beside(NamedTuple):
    """The average of one method on one data set, for which the paper also has a number."""

    table: Table
    entry: Entry

    @property
    def paper(self) -> float | None:
        return paper_gain(self.table, self.entry)

    @property
    def scale(self) -> str:
        """Such as `cpu, W = 20`."""
        used = proper(self.entry.members[0].model).removeprefix("WIMA, ")
        return f"{self.table.sheet.scale}, {used}"


def beside_paper(tables: Sequence[Table]) -> list[Beside]:
    """Each data set and method once, at the finished scale nearest to the paper's."""
    found: dict[tuple[str, str], Beside] = {}
    for table in sorted(tables, key=_distance):
        for entry in table.entries.values():
            plain = table.entry(entry.row, entry.column, PLAIN)
            printed = entry.heading != PLAIN and entry.printed and plain and plain.printed
            if printed and (entry.gain is not None or entry.text == "N/A"):
                found.setdefault((entry.column, entry.row), Beside(table, entry))
    columns = list(dict.fromkeys(column for column, _ in found))
    return [found[place] for place in sorted(found, key=lambda place: columns.index(place[0]))]


def _distance(table: Table) -> tuple[bool, float]:
    """A sort key: the paper's scale first, then the longest windows."""
    scale = scales().get(table.sheet.scale)
    return table.sheet.scale != "paper", -scale.windows if scale else 0.0


def glance(found: Sequence[Beside], measure: Measure) -> Grid:
    """One line per data set and method."""
    return Grid(2, HEADER, [_line(one, measure) for one in found])


def _line(one: Beside, measure: Measure) -> list[str]:
    entry, paper = one.entry, one.paper
    theirs = "N/A" if paper is None else measure.number(paper / 100, signed=True)
    ours = "N/A" if entry.gain is None else measure.interval(entry.gain)
    seeds = entry.basis if entry.gain is None else str(_seeds(entry.gain))
    sign = same_sign(paper, entry.gain)
    return [proper(entry.column), proper(entry.row), theirs, ours, sign, seeds, one.scale]


def _seeds(gain: Interval) -> int:
    return gain.size if gain.basis == "seeds" else 1


def same_sign(paper: float | None, gain: Interval | None) -> str:
    """`open` if the interval contains zero or is missing; a dash if either diverged."""
    if paper is None or gain is None:
        return "-"
    if isnan(gain.half) or abs(gain.mean) <= gain.half:
        return "open"
    return "yes" if gain.mean * paper > 0 else "no"


def glance_notes(found: Sequence[Beside]) -> list[str]:
    """How to read the table."""
    gains = [one.entry.gain for one in found if one.entry.gain]
    lines = ["Gain: points of test accuracy over the plain model, with our 95 % interval."]
    if any(gain.basis == "rounds" for gain in gains):
        lines.append("* One seed: the interval is over that run's rounds; otherwise over seeds.")
    if any(gain.marked for gain in gains):
        lines.append("† Also excludes zero after Holm's correction.")
    lines.append("Same sign: open if our interval contains zero; a dash if either diverged (N/A).")
    if len({one.table.sheet.scale for one in found}) > 1:
        lines.append("Methods run at several scales are shown at the scale nearest to the paper's.")
    return lines


def glance_section(found: Sequence[Beside], measure: Measure) -> str:
    """The same as a section of the page."""
    if not found:
        return ""
    made = glance(found, measure)
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in made.header)
    body = "\n".join(_row(line) for line in made.lines)
    table = f"<table class='details'><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    note = f'<p class="rest">{escape(" ".join(glance_notes(found)))}</p>'
    heading = f'<section id="glance"><h2>{TITLE}</h2>'
    return f'{heading}\n<div class="scroll">{table}</div>\n{note}</section>'


def _row(line: Sequence[str]) -> str:
    data, method, *others = map(escape, line)
    names = f'<th scope="row">{data}</th><td class="model">{method}</td>'
    return f"<tr>{names}{''.join(f'<td>{text}</td>' for text in others)}</tr>"
