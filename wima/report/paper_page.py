"""What opens a report, and the arrangement of a page of results beside the paper's.

The headline is one sentence over all tables.  If the paper has numbers, its gains stand beside
ours at a glance, below a figure; then comes a section for each data set, with its tables and notes.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import median
from typing import NamedTuple

from wima.core.measure import PLAIN
from wima.core.statistics import RISK
from wima.experiments.plan import scales
from wima.report.figures import Pair, opening_figure, save
from wima.report.inputs import Omitted
from wima.report.names import proper
from wima.report.notes import gain_notes, notes
from wima.report.statistics import Interval, corrected
from wima.report.table import Entry, Grid, Table, all_runs, narrowed
from wima.report.text import in_markdown, markdown, markdown_list, markdown_table

NOT_AVERAGED = ("wima1", PLAIN)  # a mean of one model
GLANCE = ["data set", "method", "paper's gain", "our gain", "same sign", "seeds", "scale"]
TITLE = "At a glance"
HOLM = "† The gain also excludes zero after Holm's correction for the number of intervals in its"
HOLM += " experiment:"
DPI = 96  # small, because the figure is committed with documents


class Found(NamedTuple):
    """An entry with its table: a training with and without an average, or beside the paper."""

    table: Table
    entry: Entry

    @property
    def place(self) -> str:
        return proper(", ".join(filter(None, [self.entry.row, self.entry.column])))

    @property
    def gain(self) -> Interval:
        assert self.entry.gain is not None
        return self.entry.gain


# The headline


def comparisons(tables: Sequence[Table]) -> list[Found]:
    """Each training once, however many tables show it, with the most frequent average.

    The gain is over its seeds or rounds, corrected for the number of comparisons.
    """
    trainings: dict[frozenset[int], dict[str, Found]] = {}
    for table in tables:
        for entry in table.entries.values():
            if entry.gain is None or isnan(entry.gain.mean) or entry.model in NOT_AVERAGED:
                continue
            runs = frozenset(m.run.number for m in entry.members if m.counts and m.run)
            trainings.setdefault(runs, {}).setdefault(entry.model, Found(table, entry))
    counts = Counter(model for models in trainings.values() for model in models)
    [(common, _)] = counts.most_common(1) or [("", 0)]
    chosen = [models.get(common, next(iter(models.values()))) for models in trainings.values()]
    gains = corrected([one.gain for one in chosen])
    return [
        one._replace(entry=one.entry._replace(gain=gain))
        for one, gain in zip(chosen, gains, strict=True)
    ]


def headline(tables: Sequence[Table]) -> str:
    """Whether averaging helps, by how much and how confidently."""
    found, measure = comparisons(tables), tables[0].measure
    if not found:
        return "No comparison yet: no finished run has an average beside the plain model."
    models = {one.entry.model for one in found}
    who = f"Averaging ({proper(models.pop())})" if len(models) == 1 else "Averaging"
    counts = sorted({_seeds(one.gain) for one in found})
    seeds = f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds."
    seeds = "1 seed: this says nothing about other seeds." if counts == [1] else seeds

    def points(value: float) -> str:
        return measure.number(value, signed=True) + (" points" if measure.is_share else "")

    def between(low: float, high: float) -> str:
        return f" [{measure.number(low, signed=True)}, {measure.number(high, signed=True)}]"

    if len(found) == 1:
        gain = found[0].gain
        text = f"{who} changes test {measure.metric} by {points(gain.mean)}"
        if isnan(gain.half):
            why = "all differences are equal" if gain.is_constant else "too few evaluations"
            text += f", no interval: {why}"
        else:
            text += between(gain.mean - gain.half, gain.mean + gain.half)
        return f"{text} ({found[0].place}). {seeds}"

    improvements = [measure.sign * one.gain.mean for one in found]
    better = sum(improvement > 0 for improvement in improvements)
    known = sum(not isnan(one.gain.half) for one in found)
    constant = any(one.gain.is_constant for one in found)
    sure = f" ({'no intervals' if constant else 'too few evaluations for intervals'})"
    if known:
        clear = [measure.sign * one.gain.mean > 0 for one in found if one.gain.marked]
        worse = f", significantly worse in {clear.count(False)}" if False in clear else ""
        some = "" if known == len(found) else f" of {known} with an interval"
        sure = f" (significantly in {clear.count(True)}{some}{worse})"
    gains = sorted(one.gain.mean for one in found)
    gain_or, loss_or = ("gain", "loss") if measure.sign > 0 else ("change", "rise")
    middle = f"median {gain_or} {points(median(gains))}"
    if ends := median_interval(gains):
        middle += between(*ends)
    worst = found[improvements.index(min(improvements))]
    name = f"largest {loss_or}" if min(improvements) < 0 else f"smallest {gain_or}"
    least = f"{name} {points(worst.gain.mean)} ({worst.place})"
    what = f"{who} improves test {measure.metric} in {better} of {len(found)} comparisons"
    return f"{what}{sure}; {middle}; {least}. {seeds}"


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The distribution-free 95 % interval of the median of sorted values: x_k, x_(n+1-k).

    k is the largest number for which n fair coins show at most k - 1 heads with a probability of
    at most 2.5 %.
    """
    from scipy.special import bdtr  # type: ignore[import-untyped]  # slow to import

    n = len(values)
    k = sum(float(bdtr(heads, n, 0.5)) <= RISK / 2 for heads in range(n))
    return (values[k - 1], values[n - k]) if k else None


def _seeds(gain: Interval) -> int:
    return gain.size if gain.basis == "seeds" else 1


# At a glance


def beside_paper(tables: Sequence[Table]) -> list[Found]:
    """Each data set and method with a number of the paper once, at the scale nearest to its own."""

    def distance(table: Table) -> tuple[bool, float]:
        """The paper's scale first, then the longest windows."""
        scale = scales().get(table.sheet.scale)
        return table.sheet.scale != "paper", -scale.windows if scale else 0.0

    found: dict[tuple[str, str], Found] = {}
    for table in sorted(tables, key=distance):
        for entry in table.entries.values():
            plain = table.plain(entry)
            printed = entry.heading != PLAIN and entry.printed and plain and plain.printed
            if printed and (entry.gain is not None or entry.text == "N/A"):
                found.setdefault((entry.column, entry.row), Found(table, entry))
    columns = list(dict.fromkeys(column for column, _ in found))
    return [found[place] for place in sorted(found, key=lambda place: columns.index(place[0]))]


def glance(found: Sequence[Found]) -> Grid:
    """The paper's gains beside ours: a line for each data set and method."""
    lines = []
    for table, entry in found:
        paper, gain, measure = entry.paper_gain, entry.gain, table.measure
        theirs = "N/A" if paper is None else measure.number(paper / 100, signed=True)
        ours = "N/A" if gain is None else measure.interval(gain)
        seeds = entry.basis if gain is None else str(_seeds(gain))
        scale = f"{table.sheet.scale}, {proper(entry.model).removeprefix('WIMA, ')}"
        names = [proper(entry.column), proper(entry.row)]
        lines.append([*names, theirs, ours, same_sign(paper, gain), seeds, scale])
    return Grid(2, GLANCE, lines)


def same_sign(paper: float | None, gain: Interval | None) -> str:
    """`open` if the interval contains zero or is missing; a dash if either diverged."""
    if paper is None or gain is None:
        return "-"
    if isnan(gain.half) or abs(gain.mean) <= gain.half:
        return "open"
    return "yes" if gain.mean * paper > 0 else "no"


def glance_notes(found: Sequence[Found]) -> list[str]:
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


def opening(found: Sequence[Found]) -> tuple[str, list[Pair]]:
    """The data set with the most methods at the paper's scale: its column, and the panels."""
    shown = [one for one in found if one.table.sheet.scale == "paper"]
    [(column, _)] = Counter(one.entry.column for one in shown).most_common(1) or [("", 0)]
    pairs = []
    for table, entry in (one for one in shown if one.entry.column == column):
        seeds = f"{entry.seeds} seed{'s' * (entry.seeds > 1)}" if entry.seeds else entry.basis
        missing = " (paper: N/A)" if entry.paper_gain is None else ""
        models = filter(None, (table.plain(entry), entry))
        title = f"{proper(entry.row)}, {seeds}{missing}"
        pairs.append((title, [(model, proper(model.model)) for model in models]))
    return column, pairs


def draw_opening(found: Sequence[Found], folder: Path) -> str:
    """Draw the opening, if the paper's scale was run; returns the file's name."""
    column, pairs = opening(found)
    if not pairs:
        return ""
    of_paper = (one for one in found if one.table.sheet.scale == "paper")
    table = next(one.table for one in of_paper if one.entry.column == column)
    stem = re.sub(r"[^a-z0-9]+", "-", f"{table.slug}-{column}".lower()).strip("-")
    figure = opening_figure(pairs, f"{column}, at the paper's scale", table.measure)
    return save(figure, folder, stem, "png", dpi=DPI)[0]


# The page in Markdown


class Notes(NamedTuple):
    """The author's notes: general ones, and those on each data set."""

    general: str = ""
    by_data: Mapping[str, str] = {}


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


def markdown_page(
    tables: Sequence[Table],
    omitted: Sequence[Omitted],
    facts: Mapping[str, str],
    author: Notes,
    picture: str = "",
) -> str:
    """All tables on one page, with the machines and versions used.

    facts: title, command, version and date of the page; picture: the file of the opening.
    """
    beside = beside_paper(tables)
    parts = [f"# {in_markdown(facts['title'])}", f"**{in_markdown(headline(tables))}**"]
    if picture:
        parts.append(f"![Curves at the paper's scale, and the paper's numbers]({picture})")
    if beside:
        parts += [f"## {TITLE}", markdown_table(glance(beside))]
        parts.append(markdown_list(glance_notes(beside)))
    parts.append(f"Made by `{facts['command']}`, wima {facts['version']}, {facts['made']}.")
    parts += filter(None, [author.general])
    if beside:
        parts += ["## How to read the tables", markdown_list(_legend(tables))]
        for name, pieces in by_data(tables).items():
            parts.append(f"## {in_markdown(name)}")
            for table in pieces:
                shared = {*gain_notes(table), table.sheet.note if table.sheet.scale else None}
                own = [line for line in notes(table) if line not in shared]
                parts.append("##" + markdown(table, own).rstrip("\n"))
            if name in author.by_data:
                parts += [f"### Notes on {in_markdown(name)}", author.by_data[name]]
    else:
        parts += ["#" + markdown(table).rstrip("\n") for table in tables]

    runs = all_runs(tables)
    keys = ("processor", "cores", "python", "torch", "wima", "code")
    facts_of = ([f"{k} {r.environment[k]}" for k in keys if r.environment.get(k)] for r in runs)
    machines = Counter(map(", ".join, facts_of))
    lines = [f"{sum(run.seconds or 0 for run in runs) / 3600:.1f} hours of rounds in total"]
    lines += [f"{n} run{'s' * (n > 1)}: {machine}" for machine, n in machines.most_common()]
    parts += ["## Machines", markdown_list(lines)]
    left = [f"{item.path}: {item.reason}" for item in omitted]
    parts += ["## Left out", markdown_list(left)] if left else []
    return "\n\n".join(parts) + "\n"


def _legend(tables: Sequence[Table]) -> list[str]:
    """The notes that several tables have in common, once each."""
    lines = [line for table in tables for line in gain_notes(table) if "Holm" not in line]
    counts = [
        f"{len(table.intervals)} in {f'{table.sheet.name} {table.sheet.scale}'.strip()}"
        for table in tables
        if table.intervals
    ]
    lines.append(f"{HOLM} {', '.join(counts)}.")
    smaller = [table.sheet for table in tables if table.sheet.scale not in ("", "paper")]
    lines += [f"Scale {sheet.scale}: {sheet.note}" for sheet in smaller if sheet.note]
    return list(dict.fromkeys(lines))


def by_data(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """For each data set, its columns as a table each; several are named in their titles."""
    found: dict[str, list[Table]] = {}
    for table in tables:
        parts: dict[tuple[str, str], list[Entry]] = {}  # by data set and column
        for column in table.sheet.columns:
            for entry in (e for e in table.entries.values() if e.column == column):
                runs = [member.run for member in entry.members if member.run is not None]
                if runs:
                    place = proper(runs[0].settings.data.name), column
                    parts.setdefault(place, []).append(entry)
        columns = Counter(name for name, _ in parts)
        for (name, column), entries in parts.items():
            title = table.sheet.title + (f": {column}" if columns[name] > 1 else "")
            rows, headings = {e.row for e in entries}, {e.heading for e in entries}
            sheet = narrowed(table.sheet, rows, {column}, headings)._replace(title=title)
            part = table._replace(sheet=sheet, entries={e.place: e for e in entries})
            found.setdefault(name, []).append(part)
    return found
