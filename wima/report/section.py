"""A section below a table, with a table and a figure of other numbers that runs recorded.

Numbers are means over seeds; gains over plain are paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan, nan
from typing import NamedTuple

import numpy as np

from wima.report.grid import Grid
from wima.report.measure import Measure
from wima.report.notes import holm_note
from wima.report.statistics import Interval, corrected, gain_over_seeds
from wima.report.tables import PLAIN, Entry, Member, Table

Numbers = Mapping[str, float]  # for one model in one run, by name
Pick = Callable[[Member], Numbers]  # empty if the run has no such numbers
Points = list[tuple[float, float]]


class Panel(NamedTuple):
    """The models of one place."""

    title: str
    lines: dict[str, Points]  # by heading


class Picture(NamedTuple):
    """A panel per place, all with the same axes."""

    x: str
    y: str
    diagonal: bool
    panels: list[Panel]


class Section(NamedTuple):
    """A table with its notes, and a figure of the same models."""

    name: str  # in file names
    title: str
    grid: Grid
    notes: list[str]
    picture: Picture | None = None


class Column(NamedTuple):
    """A number, by its name in `Numbers`, and its gain over plain if that has a heading."""

    heading: str
    name: str
    measure: Measure
    gain: str = ""


class Line(NamedTuple):
    """A model in one place of the table."""

    labels: list[str]
    entry: Entry
    values: dict[int, Numbers]  # by seed, for finished runs
    plain: dict[int, Numbers]  # the same for plain; empty if this is plain

    def mean(self, name: str) -> float:
        found = [numbers[name] for numbers in self.values.values() if name in numbers]
        return float(np.mean(found)) if found else nan

    def gain(self, name: str) -> Interval | None:
        """The gain over plain, for the seeds that both have."""
        shared = [seed for seed in self.values if seed in self.plain]
        differences = [self.values[seed][name] - self.plain[seed][name] for seed in shared]
        return gain_over_seeds(differences) if differences else None


def lines_of(table: Table, picks: Mapping[str, Pick]) -> list[Line]:
    """A line for each model and pick for which a run has numbers.  picks: by label."""
    made = []
    for entry, names in _entries(table):
        plain = table.entry(entry.row, entry.column, PLAIN)
        for label, pick in picks.items():
            if any(map(pick, entry.members)):
                base = {} if plain is None or plain is entry else by_seed(plain, pick)
                labels = [*names, entry.heading, *([label] if label else [])]
                made.append(Line(labels, entry, by_seed(entry, pick), base))
    return made


def _entries(table: Table) -> Iterator[tuple[Entry, list[str]]]:
    """Row by row, with the names of row and column if there are several."""
    sheet = table.sheet
    several = len(sheet.rows) > 1, len(sheet.columns) > 1
    for place in [(row, column) for row in sheet.rows for column in sheet.columns]:
        names = [name for name, needed in zip(place, several, strict=True) if needed]
        entries = (table.entry(*place, heading) for heading in sheet.headings)
        yield from ((entry, names) for entry in entries if entry is not None)


def by_seed(entry: Entry, pick: Pick) -> dict[int, Numbers]:
    """The numbers of the finished seeds; empty if one of them diverged."""
    found = {m.seed: pick(m) for m in entry.members if m.counts and not entry.text}
    return {seed: numbers for seed, numbers in found.items() if numbers}


def grid_of(lines: Sequence[Line], columns: Sequence[Column]) -> tuple[Grid, list[str]]:
    """The lines as strings, with notes.  Holm's correction is over all their gains."""
    names = [column.name for column in columns if column.gain]
    found = {(n, name): line.gain(name) for n, line in enumerate(lines) for name in names}
    known = {place: gain for place, gain in found.items() if gain is not None}
    gains = dict(zip(known, corrected([*known.values()]), strict=True))
    counts = {len(line.values) for line in lines if line.values}
    seeds = ["seeds"] if len(counts) > 1 else []
    labels = len(lines[0].labels)
    header = [""] * labels
    for column in columns:
        header += [column.heading, column.gain] if column.gain and gains else [column.heading]
    body = []
    for number, line in enumerate(lines):
        own = {name: gains.get((number, name)) for name in names} if gains else {}
        cells = _cells(line, columns, own) + [str(len(line.values)) for _ in seeds]
        body.append([*line.labels, *cells])
    word = next((column.gain for column in columns if column.gain), "").split(" ")[0].capitalize()
    return Grid(labels, [*header, *seeds], body), _notes(word, [*gains.values()], counts)


def _cells(
    line: Line, columns: Sequence[Column], gains: Mapping[str, Interval | None]
) -> list[str]:
    """Means over seeds, or the text that the table shows instead."""
    cells = []
    for column in columns:
        cells.append(column.measure.number(line.mean(column.name)))
        if column.name in gains:
            gain = gains[column.name]
            cells.append("" if gain is None else column.measure.interval(gain))
    return cells if line.values else [line.entry.text or "-", *cells[1:]]


def _notes(word: str, gains: Sequence[Interval], counts: set[int]) -> list[str]:
    over = f"{max(counts, default=0)} seeds" if len(counts) == 1 else "seeds"
    lines = [f"Means over {over}."] if counts - {0, 1} else []
    shown = [gain for gain in gains if not isnan(gain.half)]
    if shown:
        lines += [f"{word}: against plain, paired by seed, with Student's 95 % interval."]
        lines += [holm_note(len(shown))]
    elif gains:
        lines += [f"{word}: against plain. One seed: no interval; this says nothing about others."]
    return lines


def panels_of(table: Table, draw: Callable[[Sequence[Member]], Points]) -> list[Panel]:
    """A panel for each place in which a model has points, from finished runs."""
    panels: dict[tuple[str, ...], dict[str, Points]] = {}
    for entry, names in _entries(table):
        found = [] if entry.text else draw([m for m in entry.members if m.counts])
        points = [point for point in found if np.isfinite(point).all()]
        if points:
            panels.setdefault(tuple(names), {})[entry.heading] = points
    return [Panel(" · ".join(names), lines) for names, lines in panels.items()]
