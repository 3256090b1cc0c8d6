"""Runs in rows and columns, with a number for every place: from sheets, or by settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wima.experiments.printed import Printed, printed
from wima.experiments.sheet import Sheet
from wima.report.gather import Found, Trace
from wima.report.measure import Measure
from wima.report.statistics import (
    Curve,
    Interval,
    Score,
    corrected,
    gain_over_rounds,
    gain_over_seeds,
    mean_sent,
    over_seeds,
    score,
)

PLAIN = "plain"
Place = tuple[str, str, str]  # row, column, heading


class Member(NamedTuple):
    """One seed behind a number."""

    seed: int
    model: str  # its name in the run's records
    run: Trace | None  # None: there is no such run, or it is left out
    score: Score | None  # so far, if the run is unfinished

    @property
    def window(self) -> Curve | None:
        """The number of averaged models over the rounds, if it varies."""
        return self.run.windows.get(self.model) if self.run is not None else None

    @property
    def sent(self) -> int | None:
        """The bytes sent until the target was reached, if it was and the run recorded them."""
        reached = self.score.reached if self.score is not None else None
        return self.run.extras.until(reached) if self.run is not None else None

    @property
    def counts(self) -> bool:
        """Whether the run is finished and has a number."""
        done = self.run is not None and self.run.state == "done"
        return done and self.score is not None and not isnan(self.score.mean)

    @property
    def diverged(self) -> bool:
        """Whether the run diverged, or its last values are not all finite."""
        if self.run is None or self.run.state == "diverged":
            return self.run is not None
        late = self.score is not None and self.score.evaluations > 0
        return self.run.state == "done" and late and not self.counts


class Entry(NamedTuple):
    """The number in one place of a table, and the runs behind it."""

    row: str
    column: str
    heading: str
    members: list[Member]
    mean: float  # NaN: see `text`
    deviation: float  # over seeds
    gain: Interval | None  # over plain
    printed: Printed | None

    @property
    def seeds(self) -> int:
        """How many seeds the mean is over."""
        return 0 if isnan(self.mean) else sum(member.counts for member in self.members)

    @property
    def text(self) -> str:
        """The text that is shown instead of a number."""
        if not isnan(self.mean) or not self.members:
            return ""
        if any(member.diverged for member in self.members):
            return "N/A"
        runs = [m.run for m in self.members if m.run is not None and m.run.state != "done"]
        return max(runs, key=lambda run: run.done).progress if runs else "-"

    @property
    def sent(self) -> float:
        """The mean bytes to the target, over the seeds that reach it; NaN if one lacks them."""
        there = [m for m in self.members if m.counts and m.score and m.score.reached is not None]
        return mean_sent([member.sent for member in there])

    @property
    def basis(self) -> str:
        """The number of seeds, and what happened to the others."""
        diverged = sum(member.diverged for member in self.members)
        if diverged:
            return f"{diverged} of {len(self.members)} diverged"
        seeds, planned = self.seeds, len(self.members)
        some = f"{seeds}" if seeds == planned else f"{seeds} of {planned}"
        return f"{some} seed{'s' * (planned != 1)}"


class Table(NamedTuple):
    """A sheet with its numbers."""

    sheet: Sheet  # its cells are no longer used
    last: int
    entries: dict[Place, Entry]
    slug: str = ""  # its name in file names
    long: Mapping[str, str] = {}  # row -> the full text of a shortened name

    def entry(self, row: str, column: str, heading: str) -> Entry | None:
        return self.entries.get((row, column, heading))

    @property
    def gains(self) -> list[Interval]:
        """The gains over plain, in the order of the entries."""
        return [entry.gain for entry in self.entries.values() if entry.gain]

    def runs(self) -> Iterable[Trace]:
        members = (member for entry in self.entries.values() for member in entry.members)
        return {id(m.run): m.run for m in members if m.run is not None}.values()


Members = Mapping[str, Mapping[int, tuple[Trace | None, str]]]  # heading -> seed -> run, model


def sheet_table(path: Path, sheet: Sheet, found: Found, measure: Measure) -> Table:
    """The table of a sheet and the runs beside it, without rows and columns that have no runs."""
    last = measure.last or sheet.last
    sheet = _started(sheet, path.parent)
    places: dict[tuple[str, str], dict[str, dict[int, tuple[Trace | None, str]]]] = {}
    for cell in sheet.cells:
        run = found.runs.get((path.parent / cell.run).resolve())
        place = places.setdefault((cell.row, cell.column), {})
        for heading, model in cell.models.items():
            place.setdefault(heading, {}).setdefault(cell.seed, (run, model))
    return make_table(sheet, places, last, measure)


def _started(sheet: Sheet, folder: Path) -> Sheet:
    """The sheet without rows and columns of which no run was started; unchanged if none was."""
    started = [cell for cell in sheet.cells if (folder / cell.run).exists()] or sheet.cells
    rows, columns = {cell.row for cell in started}, {cell.column for cell in started}
    return sheet._replace(
        rows=[row for row in sheet.rows if row in rows],
        columns=[column for column in sheet.columns if column in columns],
        cells=[cell for cell in sheet.cells if cell.row in rows and cell.column in columns],
    )


def make_table(
    sheet: Sheet, places: Mapping[tuple[str, str], Members], last: int, measure: Measure
) -> Table:
    """The table with the numbers of all places."""
    entries = {}
    for (row, column), place in places.items():
        members = {heading: _members(seeds, last, measure) for heading, seeds in place.items()}
        for heading, own in members.items():
            where = (row, column, heading)
            paper = printed(sheet.name, *where) if measure.is_share else None
            mean, deviation = _level(own)
            gain = None if heading == PLAIN else _gain(own, members.get(PLAIN, []), last)
            entries[where] = Entry(*where, own, mean, deviation, gain, paper)
    return Table(sheet, last, _corrected(entries))


def _corrected(entries: dict[Place, Entry]) -> dict[Place, Entry]:
    """The entries, with the p-values of gains corrected for the number of intervals."""
    gains = {where: entry.gain for where, entry in entries.items() if entry.gain}
    marked = dict(zip(gains, corrected([*gains.values()]), strict=True))
    return {w: entry._replace(gain=marked.get(w, entry.gain)) for w, entry in entries.items()}


def _members(
    seeds: Mapping[int, tuple[Trace | None, str]], last: int, measure: Measure
) -> list[Member]:
    members = []
    for seed, (run, model) in sorted(seeds.items()):
        curve = run.curves.get(model) if run else None
        numbers = None
        if run and curve is not None:
            numbers = score(curve, run.done, last, measure.target, measure.sign)
        members.append(Member(seed, model, run, numbers))
    return members


def _level(members: Sequence[Member]) -> tuple[float, float]:
    """Mean and deviation over the finished seeds; NaN if one of them diverged."""
    if any(member.diverged for member in members):
        return nan, nan
    return over_seeds([m.score.mean for m in members if m.counts and m.score])


def _gain(members: Sequence[Member], plain: Sequence[Member], last: int) -> Interval | None:
    """The paired difference from plain, over the seeds that both have."""
    if any(member.diverged for member in [*members, *plain]):
        return None
    base = {member.seed: member for member in plain if member.counts}
    pairs = [(m, base[m.seed]) for m in members if m.counts and m.seed in base]
    if not pairs:
        return None
    if len(pairs) == 1:
        return gain_over_rounds(_differences(*pairs[0], last))
    return gain_over_seeds([a.score.mean - b.score.mean for a, b in pairs if a.score and b.score])


def _differences(member: Member, plain: Member, last: int) -> np.ndarray:
    """The average's value minus plain's, in the last rounds in which both were evaluated."""
    assert member.run is not None and plain.run is not None
    (rounds, values), (others, base) = (m.run.curves[m.model] for m in (member, plain) if m.run)
    common, mine, its = np.intersect1d(rounds, others, return_indices=True)
    late = common > min(member.run.done, plain.run.done) - last
    return (values[mine] - base[its])[late]
