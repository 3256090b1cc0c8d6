"""A table of numbers: runs in rows and columns, with levels over seeds and paired differences.

A report's tables compare averages with the plain model of the same place; `wima compare` makes a
table of methods and models, which it compares with one of its entries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, product
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wima.core.measure import PLAIN, Measure, megabytes
from wima.core.statistics import last_rounds
from wima.experiments.sheet import Printed, Sheet, own_sheet, printed
from wima.report.inputs import Data, Omitted, Source
from wima.report.names import group_names, grouped
from wima.report.statistics import Curve, Interval, Score, corrected, gain, over_seeds, score
from wima.runs.settings import NOT_IN_RESULTS

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
    paper_gain: float | None = None  # the difference between the paper's two numbers, in points
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
    measure: Measure
    last: int
    entries: dict[Place, Entry]
    baseline: Place | None = None  # of a comparison; None: gains are over plain in the same place
    slug: str = ""  # its name in file names
    long: Mapping[str, str] = {}  # row -> the full text of a shortened name

    @property
    def gains(self) -> list[Interval]:
        """All gains, in the order of the entries."""
        return [entry.gain for entry in self.entries.values() if entry.gain]

    @property
    def intervals(self) -> list[Interval]:
        """The gains with an interval, for whose number Holm corrects."""
        return [gain for gain in self.gains if not isnan(gain.half)]

    def runs(self) -> list[Source]:
        return all_runs([self])

    def plain(self, entry: Entry) -> Entry | None:
        """The plain model in the same place."""
        return self.entries.get((entry.row, entry.column, PLAIN))


def all_runs(tables: Iterable[Table]) -> list[Source]:
    """The runs behind these tables, each once."""
    entries = (entry for table in tables for entry in table.entries.values())
    members = (member for entry in entries for member in entry.members)
    return [*{m.run.number: m.run for m in members if m.run is not None}.values()]


# The runs in each place: seed -> run, and the name of the model in its records.
Places = dict[Place, dict[int, tuple[Source | None, str]]]


def sheet_table(path: Path, sheet: Sheet, data: Data, measure: Measure) -> Table:
    """The table of a sheet and the runs beside it, without rows and columns that have no runs."""
    started = [cell for cell in sheet.cells if (path.parent / cell.run).exists()] or sheet.cells
    rows, columns = {cell.row for cell in started}, {cell.column for cell in started}
    places: Places = {}
    for cell in (c for c in sheet.cells if c.row in rows and c.column in columns):
        run = data.runs.get((path.parent / cell.run).resolve())
        for heading, model in cell.models.items():
            seeds = places.setdefault((cell.row, cell.column, heading), {})
            seeds.setdefault(cell.seed, (run, model))
    return make_table(narrowed(sheet, rows, columns, sheet.headings), places, measure)


def narrowed(
    sheet: Sheet, rows: Collection[str], columns: Collection[str], headings: Collection[str]
) -> Sheet:
    """The sheet with only these names, in its own order."""
    return sheet._replace(
        rows=[row for row in sheet.rows if row in rows],
        columns=[column for column in sheet.columns if column in columns],
        headings=[heading for heading in sheet.headings if heading in headings],
    )


def runs_table(runs: Sequence[Source], measure: Measure) -> tuple[Table, list[Omitted]]:
    """The table of runs that are in no sheet: a row per group that differs only in the seed.

    Also returns runs that repeat another one.
    """
    groups = [
        ({name: text for name, text in facts.items() if text != "None"}, own)
        for facts, own in grouped(runs, {"seed", *NOT_IN_RESULTS})
    ]
    groups.sort(key=lambda group: [*group[0].items()])
    names = group_names([facts for facts, _ in groups])
    places: Places = {}
    repeats = []
    for name, (_, own) in zip(names, groups, strict=True):
        seeds: dict[int, Source] = {}
        for run in own:
            first = seeds.setdefault(run.settings.seed, run)
            if first is not run:
                why = f"the same settings and seed as {first.path}"
                repeats.append(Omitted(str(run.path), why))
        for model in models_of(seeds.values()):
            places[name, "", model] = {seed: (run, model) for seed, run in seeds.items()}
    headings = sorted(models_of(runs), key=lambda heading: heading != PLAIN)
    last = last_rounds(min((run.settings.rounds for run in runs), default=1))
    title = "Runs" if len(names) > 1 else f"Runs of {next(iter(names))}"
    sheet = own_sheet(RUNS, title, last, rows=[*names], headings=headings)
    long = {name: whole for name, whole in names.items() if name != whole}
    return make_table(sheet, places, measure)._replace(long=long), repeats


def models_of(runs: Iterable[Source]) -> list[str]:
    """The models of all runs; plain if none was evaluated."""
    return list(dict.fromkeys(model for run in runs for model in run.models)) or [PLAIN]


def make_table(sheet: Sheet, places: Places, measure: Measure, base: Place | None = None) -> Table:
    """The numbers of a sheet, with gains corrected for their number (Holm)."""
    last = measure.last or sheet.last
    entries = {}
    for place, seeds in places.items():
        members = [_member(seed, *seeds[seed], last, measure) for seed in sorted(seeds)]
        number = printed(sheet.name, *place) if measure.is_share else None
        entry = Entry(*place, members, nan, nan, number)
        if not entry.diverged:  # else the other seeds would look too good
            mean, deviation = over_seeds([score.mean for score in entry.scores.values()])
            entry = entry._replace(mean=mean, deviation=deviation)
        entries[place] = entry
    table = Table(sheet, measure, last, entries, base)
    gains = {}
    for place, entry in entries.items():
        plain = table.plain(entry)
        other = entries[base] if base else plain
        if other and other is not entry and (own := _gain(entry, other, None if base else last)):
            gains[place] = own
        paper, its = (e.printed.value if e and e.printed else None for e in (entry, plain))
        if plain is not entry and paper is not None and its is not None:
            entries[place] = entry._replace(paper_gain=paper - its)
    for place, own in zip(gains, corrected([*gains.values()]), strict=True):
        entries[place] = entries[place]._replace(gain=own)
    return table


def _member(seed: int, run: Source | None, model: str, last: int, measure: Measure) -> Member:
    """A seed with its numbers."""
    curve = run.curves.get((model, measure.metric)) if run else None
    if run is None or curve is None:
        return Member(seed, model, run)
    numbers = score(curve, run.done, last, measure.target, measure.sign)
    sent = run.curves.get(("", "bytes"))
    there = sent.values[sent.rounds == numbers.reached] if sent else []
    window, until = run.curves.get((model, "window")), int(there[0]) if len(there) else None
    return Member(seed, model, run, curve, window=window, score=numbers, sent=until)


def _gain(entry: Entry, base: Entry, last: int | None) -> Interval | None:
    """The paired difference over the seeds that both have; None if a seed of either diverged.

    last: if there is one pair, its interval is computed over so many rounds; None: it has none.
    """
    if entry.diverged or base.diverged:
        return None
    others = {member.seed: member for member in base.members if member.counts}
    pairs = [(m, others[m.seed]) for m in entry.members if m.counts and m.seed in others]
    if last is not None and len(pairs) == 1:
        return gain(_differences(*pairs[0], last), "rounds")
    means = [a.score.mean - b.score.mean for a, b in pairs if a.score and b.score]
    return gain(means, "seeds") if means else None


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


def grid(table: Table) -> Grid:
    """Our numbers, with the paper's number and the difference in parentheses.

    There is a column for seeds only if their number varies.
    """
    sheet, measure = table.sheet, table.measure
    header, rows = _layout(sheet)
    labels, counted = len(header), [] if common_seeds(table) else ["seeds"]
    gained = [h for h in sheet.headings if h != PLAIN and PLAIN in sheet.headings]
    if labels == 1:
        header += [n for h in sheet.headings for n in ([h, GAIN + h] if h in gained else [h])]
    else:
        header += sheet.columns
    leaders = _leaders(table)
    lines: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for names, places in rows:
        entries = [table.entries.get(place) for place in places]
        if not any(entries):
            continue
        cells, gains = [*names], [_gain_text(entry, measure) for entry in entries]
        for place, entry, text in zip(places, entries, gains, strict=True):
            best |= {(len(lines), len(cells))} if place in leaders else set()
            cells.append(_value_text(entry, measure))
            cells += [text] if labels == 1 and place[2] in gained else []
        lines.append([*cells, *(_seeds(entries) for _ in counted)])
        if labels > 1 and any(gains):
            lines.append([names[0], GAIN + names[1], *gains, *("" for _ in counted)])
    return Grid(labels, [*header, *counted], lines, best)


def target_grid(table: Table) -> Grid | None:
    """The rounds that each model needs to reach the target, if there is one."""
    if table.measure.target is None:
        return None
    header, rows = _layout(table.sheet)
    labels = len(header)
    header += table.sheet.headings if labels == 1 else table.sheet.columns
    lines = [[*names, *map(_reached_text, map(table.entries.get, own))] for names, own in rows]
    return Grid(labels, header, [line for line in lines if labels == 1 or any(line[labels:])])


def _layout(sheet: Sheet) -> tuple[list[str], list[tuple[list[str], list[Place]]]]:
    """The headings of the labels, and for each line its labels and places.

    With one column: a line per row.  With several: a line per row and model, as in the paper.
    """
    rows, columns, headings = sheet.rows, sheet.columns, sheet.headings
    if len(columns) == 1:
        return [*columns], [([row], [(row, columns[0], h) for h in headings]) for row in rows]
    lines = [([row, h], [(row, c, h) for c in columns]) for row in rows for h in headings]
    return ["", ""], lines


def common_seeds(table: Table) -> str:
    """The seeds of all numbers in a table, such as `3 seeds`; empty if they differ."""
    texts = {entry.basis for entry in table.entries.values() if entry.seeds}
    return texts.pop() if len(texts) == 1 else ""


def places(table: Table) -> Iterator[tuple[Entry, list[str]]]:
    """The entries row by row, with the names of row and column if there are several."""
    sheet = table.sheet
    several = len(sheet.rows) > 1, len(sheet.columns) > 1
    for place in product(sheet.rows, sheet.columns, sheet.headings):
        if place in table.entries:
            yield table.entries[place], list(compress(place, several))


def _leaders(table: Table) -> set[Place]:
    """The best number of each row and column, as shown; none if all models are equal."""
    shown: dict[tuple[str, str], dict[Place, float]] = {}
    measure = table.measure
    for place, entry in table.entries.items():
        if not isnan(entry.mean):
            number = round(measure.sign * measure.factor * entry.mean, measure.digits)
            shown.setdefault(place[:2], {})[place] = number
    return {
        place
        for numbers in shown.values()
        for place, number in numbers.items()
        if number == max(numbers.values()) > min(numbers.values())
    }


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


def _gain_text(entry: Entry | None, measure: Measure) -> str:
    """The gain over plain with its interval, followed by the paper's gain."""
    if entry is None or entry.gain is None:
        return ""
    paper = entry.paper_gain
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
    texts = [entry.basis for entry in entries if entry]
    if len({*texts}) == 1:
        return texts[0]
    return " / ".join(entry.basis if entry else "none" for entry in entries)
