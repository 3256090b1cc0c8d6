"""A table of numbers: runs in rows and columns, with levels over seeds and paired differences.

A report's tables compare averages with the plain model of the same place; `wima compare` makes a
table of methods and models, which it compares with one of its entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wima.core.measure import PLAIN, Measure, megabytes
from wima.core.statistics import last_rounds
from wima.experiments.sheet import Printed, Sheet, own_sheet, printed
from wima.report.frame import Data, Omitted, Source
from wima.report.names import group_facts, group_names
from wima.report.statistics import (
    Curve,
    Interval,
    Score,
    corrected,
    gain_over_rounds,
    gain_over_seeds,
    over_seeds,
    score,
)

GAIN = "gain of "  # followed by a heading
RUNS = "runs"  # the name of the table of runs that are in no sheet
Place = tuple[str, str, str]  # row, column, heading


class Member(NamedTuple):
    """One seed behind a number."""

    seed: int
    model: str  # its name in the run's records
    run: Source | None = None  # None: there is no such run, or it is left out
    curve: Curve | None = None
    window: Curve | None = None  # the number of averaged models, if it varies
    score: Score | None = None  # so far, if the run is unfinished
    sent: int | None = None  # bytes until the target, if it was reached and the run recorded them

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
    members: list[Member]  # one per seed
    mean: float  # NaN: see `text`
    deviation: float  # over seeds
    printed: Printed | None = None
    gain: Interval | None = None  # over plain, or over the baseline of a comparison

    @property
    def place(self) -> Place:
        return self[:3]

    @property
    def name(self) -> str:
        return f"{self.row}/{self.heading}"

    @property
    def model(self) -> str:
        """Its name in the runs' records."""
        return self.members[0].model if self.members else PLAIN

    @property
    def diverged(self) -> bool:
        return any(member.diverged for member in self.members)

    @property
    def scores(self) -> dict[int, Score]:
        """Seed -> numbers over the last rounds, for finished runs."""
        return {m.seed: m.score for m in self.members if m.counts and m.score}

    @property
    def seeds(self) -> int:
        """How many seeds the mean is over."""
        return 0 if isnan(self.mean) else len(self.scores)

    @property
    def text(self) -> str:
        """The text that is shown instead of a number."""
        if not isnan(self.mean) or not self.members:
            return ""
        if self.diverged:
            return "N/A"
        runs = [m.run for m in self.members if m.run is not None and m.run.state != "done"]
        return max(runs, key=lambda run: run.done).progress if runs else "-"

    @property
    def reached(self) -> list[int]:
        """The rounds to the target, for the seeds that reach it."""
        return [s.reached for s in self.scores.values() if s.reached is not None]

    @property
    def sent(self) -> float:
        """The mean bytes to the target, over the seeds that reach it; NaN if one lacks them."""
        there = [m for m in self.members if m.counts and m.score and m.score.reached is not None]
        sent = [member.sent for member in there if member.sent is not None]
        return float(np.mean(sent)) if sent and len(sent) == len(there) else nan

    @property
    def basis(self) -> str:
        """The number of seeds, and what happened to the others."""
        diverged, planned = sum(member.diverged for member in self.members), len(self.members)
        if diverged:
            return f"{diverged} of {planned} diverged"
        some = f"{self.seeds}" if self.seeds == planned else f"{self.seeds} of {planned}"
        return f"{some} seed{'s' * (planned != 1)}"


class Table(NamedTuple):
    """A sheet with its numbers."""

    sheet: Sheet  # its cells are no longer used
    last: int
    entries: dict[Place, Entry]
    data: Data
    slug: str = ""  # its name in file names
    long: Mapping[str, str] = {}  # row -> the full text of a shortened name

    def entry(self, row: str, column: str, heading: str) -> Entry | None:
        return self.entries.get((row, column, heading))

    @property
    def gains(self) -> list[Interval]:
        """The gains over plain, in the order of the entries."""
        return [entry.gain for entry in self.entries.values() if entry.gain]

    def runs(self) -> Iterable[Source]:
        members = (member for entry in self.entries.values() for member in entry.members)
        return {m.run.number: m.run for m in members if m.run is not None}.values()

    def paper_gain(self, entry: Entry) -> float | None:
        """The difference between the paper's two numbers, in points."""
        plain = self.entry(entry.row, entry.column, PLAIN)
        if entry.heading == PLAIN or plain is None or not (entry.printed and plain.printed):
            return None
        own, base = entry.printed.value, plain.printed.value
        return None if own is None or base is None else own - base


Members = Mapping[str, Mapping[int, tuple[Source | None, str]]]  # heading -> seed -> run, model


def sheet_table(path: Path, sheet: Sheet, data: Data, measure: Measure) -> Table:
    """The table of a sheet and the runs beside it, without rows and columns that have no runs."""
    started = [cell for cell in sheet.cells if (path.parent / cell.run).exists()] or sheet.cells
    rows, columns = {cell.row for cell in started}, {cell.column for cell in started}
    sheet = sheet._replace(
        rows=[row for row in sheet.rows if row in rows],
        columns=[column for column in sheet.columns if column in columns],
        cells=[cell for cell in sheet.cells if cell.row in rows and cell.column in columns],
    )
    places: dict[tuple[str, str], dict[str, dict[int, tuple[Source | None, str]]]] = {}
    for cell in sheet.cells:
        run = data.runs.get((path.parent / cell.run).resolve())
        place = places.setdefault((cell.row, cell.column), {})
        for heading, model in cell.models.items():
            place.setdefault(heading, {}).setdefault(cell.seed, (run, model))
    return _with_gains_over_plain(sheet, places, data, measure.last or sheet.last, measure)


def runs_table(runs: Sequence[Source], data: Data, measure: Measure) -> tuple[Table, list[Omitted]]:
    """The table of runs that are in no sheet: a row per group that differs only in the seed.

    Also returns runs that repeat another one.
    """
    groups: dict[tuple[tuple[str, str], ...], dict[int, Source]] = {}
    repeats = []
    for run in sorted(runs, key=lambda run: (run.state != "done", -run.done, str(run.path))):
        group = groups.setdefault(tuple(group_facts(run.settings).items()), {})
        first = group.setdefault(run.settings.seed, run)
        if first is not run:
            repeats.append(Omitted(str(run.path), f"the same settings and seed as {first.path}"))
    keys = sorted(groups)
    names = group_names([dict(key) for key in keys])
    places: dict[tuple[str, str], Members] = {}
    for name, key in zip(names, keys, strict=True):
        seeds = groups[key]
        models = dict.fromkeys(model for run in seeds.values() for model in run.models) or [PLAIN]
        members = {m: {seed: (run, m) for seed, run in seeds.items()} for m in models}
        places[name.short, ""] = members
    headings = list(dict.fromkeys(m for run in runs for m in run.models)) or [PLAIN]
    headings.sort(key=lambda heading: heading != PLAIN)
    last = measure.last or last_rounds(min((run.settings.rounds for run in runs), default=1))
    title = "Runs" if len(names) > 1 else f"Runs of {names[0].short}"
    rows = [name.short for name in names]
    sheet = own_sheet(RUNS, title, last, rows=rows, headings=headings)
    table = _with_gains_over_plain(sheet, places, data, last, measure)
    return table._replace(long={n.short: n.whole for n in names if n.whole != n.short}), repeats


def _with_gains_over_plain(
    sheet: Sheet,
    places: Mapping[tuple[str, str], Members],
    data: Data,
    last: int,
    measure: Measure,
) -> Table:
    entries = {}
    for (row, column), headings in places.items():
        for heading, seeds in headings.items():
            members = [member(s, *seeds[s], data, last, measure) for s in sorted(seeds)]
            paper = printed(sheet.name, row, column, heading) if measure.is_share else None
            entries[row, column, heading] = entry_of(row, column, heading, members, paper)

    def plain(entry: Entry) -> Entry | None:
        return None if entry.heading == PLAIN else entries.get((entry.row, entry.column, PLAIN))

    return Table(sheet, last, with_gains(entries, plain, last), data)


def member(
    seed: int, run: Source | None, model: str, data: Data, last: int, measure: Measure
) -> Member:
    """A seed with its numbers."""
    curve = data.curves.get((run.number, model, measure.metric)) if run else None
    if run is None or curve is None:
        return Member(seed, model, run)
    numbers = score(curve, run.done, last, measure.target, measure.sign)
    sent = data.curves.get((run.number, "", "bytes"))
    there = sent.values[sent.rounds == numbers.reached] if sent else []
    return Member(
        seed=seed,
        model=model,
        run=run,
        curve=curve,
        window=data.curves.get((run.number, model, "window")),
        score=numbers,
        sent=int(there[0]) if len(there) else None,
    )


def entry_of(
    row: str, column: str, heading: str, members: list[Member], paper: Printed | None = None
) -> Entry:
    """The level: mean and deviation over the finished seeds; NaN if one of them diverged."""
    entry = Entry(row, column, heading, members, nan, nan, paper)
    if entry.diverged:  # the others would look too good
        return entry
    mean, deviation = over_seeds([score.mean for score in entry.scores.values()])
    return entry._replace(mean=mean, deviation=deviation)


def with_gains(
    entries: Mapping[Place, Entry], base_of: Callable[[Entry], Entry | None], last: int | None
) -> dict[Place, Entry]:
    """The entries with their paired differences from a base, corrected for their number (Holm).

    last: if there is one pair, its interval is computed over so many rounds; None: it has none.
    """
    gains = {}
    for place, entry in entries.items():
        base = base_of(entry)
        if base is not None and (gain := _gain(entry, base, last)) is not None:
            gains[place] = gain
    marked = dict(zip(gains, corrected([*gains.values()]), strict=True))
    return {place: entry._replace(gain=marked.get(place)) for place, entry in entries.items()}


def _gain(entry: Entry, base: Entry, last: int | None) -> Interval | None:
    """The paired difference over the seeds that both have; None if a seed of either diverged."""
    if entry.diverged or base.diverged:
        return None
    others = {member.seed: member for member in base.members if member.counts}
    pairs = [(m, others[m.seed]) for m in entry.members if m.counts and m.seed in others]
    if last is not None and len(pairs) == 1:
        return gain_over_rounds(_differences(*pairs[0], last))
    means = [a.score.mean - b.score.mean for a, b in pairs if a.score and b.score]
    return gain_over_seeds(means) if means else None


def _differences(member: Member, base: Member, last: int) -> np.ndarray:
    """The differences in the last rounds in which both models were evaluated."""
    assert member.curve is not None and base.curve is not None and member.run and base.run
    common, mine, its = np.intersect1d(member.curve.rounds, base.curve.rounds, return_indices=True)
    late = common > min(member.run.done, base.run.done) - last
    return (member.curve.values[mine] - base.curve.values[its])[late]


# Tables as text


class Grid(NamedTuple):
    """A table of strings; the first `labels` columns are names, the others numbers."""

    labels: int
    header: list[str]
    lines: list[list[str]]
    best: Collection[tuple[int, int]] = ()  # line and column of the best in each place


def grid(table: Table, measure: Measure) -> Grid:
    """Our numbers, with the paper's number and the difference in parentheses.

    With one column: a line per row.  With several: a line per row and model, as in the paper.
    There is a column for seeds only if their number varies.
    """
    sheet = table.sheet
    lines: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    counted = [] if common_seeds(table) else ["seeds"]
    if len(sheet.columns) == 1:
        [column] = sheet.columns
        gained = [h for h in sheet.headings if h != PLAIN and PLAIN in sheet.headings]
        names = [n for h in sheet.headings for n in ([h, GAIN + h] if h in gained else [h])]
        for row in sheet.rows:
            entries = {h: table.entry(row, column, h) for h in sheet.headings}
            best |= {(len(lines), 1 + names.index(h)) for h in _leaders(entries, measure)}
            cells = []
            for heading, entry in entries.items():
                gains = [_gain_text(table, entry, measure)] if heading in gained else []
                cells += [_value_text(entry, measure), *gains]
            lines.append([row, *cells, *(_seeds(entries.values()) for _ in counted)])
        return Grid(1, [column, *names, *counted], lines, best)
    for row in sheet.rows:
        places = [{h: table.entry(row, c, h) for h in sheet.headings} for c in sheet.columns]
        leaders = [_leaders(place, measure) for place in places]
        for heading in sheet.headings:
            across = [place[heading] for place in places]
            if not any(across):
                continue
            best |= {(len(lines), 2 + i) for i, names in enumerate(leaders) if heading in names}
            values = [_value_text(entry, measure) for entry in across]
            lines.append([row, heading, *values, *(_seeds(across) for _ in counted)])
            differences = [_gain_text(table, entry, measure) for entry in across]
            if any(differences):
                lines.append([row, GAIN + heading, *differences, *("" for _ in counted)])
    return Grid(2, ["", "", *sheet.columns, *counted], lines, best)


def target_grid(table: Table, measure: Measure) -> Grid | None:
    """The rounds that each model needs to reach the target, if there is one."""
    sheet = table.sheet
    if measure.target is None:
        return None
    if len(sheet.columns) == 1:
        [column] = sheet.columns
        lines = [
            [row, *(_reached_text(table.entry(row, column, h)) for h in sheet.headings)]
            for row in sheet.rows
        ]
        return Grid(1, [column, *sheet.headings], lines)
    lines = [
        [row, heading, *(_reached_text(table.entry(row, c, heading)) for c in sheet.columns)]
        for row in sheet.rows
        for heading in sheet.headings
    ]
    return Grid(2, ["", "", *sheet.columns], [line for line in lines if any(line[2:])])


def common_seeds(table: Table) -> str:
    """The seeds of all numbers in a table, such as `3 seeds`; empty if they differ."""
    texts = {entry.basis for entry in table.entries.values() if entry.seeds}
    return texts.pop() if len(texts) == 1 else ""


def places(table: Table) -> Iterator[tuple[Entry, list[str]]]:
    """The entries row by row, with the names of row and column if there are several."""
    sheet = table.sheet
    several = len(sheet.rows) > 1, len(sheet.columns) > 1
    for place in [(row, column) for row in sheet.rows for column in sheet.columns]:
        names = [name for name, needed in zip(place, several, strict=True) if needed]
        entries = (table.entry(*place, heading) for heading in sheet.headings)
        yield from ((entry, names) for entry in entries if entry is not None)


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


def _value_text(entry: Entry | None, measure: Measure) -> str:
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


def _gain_text(table: Table, entry: Entry | None, measure: Measure) -> str:
    """The gain over plain with its interval, followed by the paper's gain."""
    if entry is None or entry.gain is None:
        return ""
    paper = table.paper_gain(entry)
    behind = "" if paper is None else f" ({measure.number(paper / 100, signed=True)})"
    return measure.interval(entry.gain) + behind


def _reached_text(entry: Entry | None) -> str:
    """The mean first round at the target, over the seeds that reach it, with the mean MB sent."""
    if entry is None or not entry.seeds:
        return ""
    rounds = entry.reached
    if not rounds:
        return "never"
    some = f" ({len(rounds)} of {entry.seeds} seeds)" if len(rounds) < entry.seeds else ""
    sent = "" if isnan(entry.sent) else f", {megabytes(entry.sent)} MB"
    return f"{sum(rounds) / len(rounds):.0f}{sent}{some}"


def _seeds(entries: Collection[Entry | None]) -> str:
    """The seeds of a line: one text if all entries agree, else one for each, in order."""
    texts = Counter(entry.basis for entry in entries if entry)
    if len(texts) == 1:
        return next(iter(texts))
    return " / ".join(entry.basis if entry else "none" for entry in entries)
