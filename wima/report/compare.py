"""`wima compare`: methods and models against one of them, with differences paired by seed.

A comparison is a table with a row per method and a heading per model, in which gains are over a
chosen entry instead of the plain model of the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wima.core.errors import UsageError, check, unknown
from wima.core.measure import PLAIN, Measure, megabytes
from wima.core.statistics import RISK, last_rounds
from wima.core.version import __version__
from wima.experiments.sheet import own_sheet
from wima.report.figures import draw_comparison
from wima.report.frame import COMPARED, Data, Omitted, Source, gather
from wima.report.names import Method, also_differ, by_size, methods_of
from wima.report.table import Entry, Grid, Member, Place, Table, entry_of, member, with_gains
from wima.report.text import (
    csv_text,
    environment,
    in_markdown,
    markdown_list,
    markdown_table,
    tabular,
)
from wima.storage.files import check_place, written

DATA = ["method", "model", "seed", "run", "state", "rounds_done", "rounds", "mean", "deviation"]
DATA += ["reached", "seeds", "pairs", "difference", "low", "high", "p", "p_holm", "won", "lost"]
MEGABYTES = " MB: millions of bytes sent to and from clients until then."
OLDER = " Older runs did not record them."
MODEL, SEEDS, P, HOLM, WON = 1, 3, 5, 6, 7  # places in the header


class Comparison(NamedTuple):
    """Entries to compare; all but the baseline have a gain if they share seeds with it."""

    table: Table
    baseline: Entry
    methods: dict[str, Method]  # by name
    by: list[str]  # the settings that name the methods
    measure: Measure
    omitted: list[Omitted]

    @property
    def rows(self) -> list[Entry]:
        return [*self.table.entries.values()]

    @property
    def tests(self) -> int:
        """The number of p-values."""
        return sum(not isnan(gain.p) for gain in self.table.gains)

    @property
    def best(self) -> Entry | None:
        """The entry with the best level, if any has one."""
        known = [entry for entry in self.rows if not isnan(entry.mean)]
        return max(known, key=lambda entry: self.measure.sign * entry.mean, default=None)

    @property
    def greatest(self) -> Entry | None:
        """The entry that improves most on the baseline, if any does."""
        gains = [(self.measure.sign * e.gain.mean, e) for e in self.rows if e.gain]
        most, entry = max(gains, key=lambda pair: pair[0], default=(0.0, None))
        return entry if most > 0 else None

    def won(self, entry: Entry, sign: int = 1) -> int:
        """The seeds in which an entry is better than the baseline; sign = -1: in which worse."""
        own, base = entry.scores, self.baseline.scores
        differences = (own[seed].mean - base[seed].mean for seed in own if seed in base)
        return sum(sign * self.measure.sign * difference > 0 for difference in differences)


def compare(
    paths: Sequence[Path],
    measure: Measure,
    baseline: str | None = None,
    models: Sequence[str] = (),
    by: Sequence[str] = (),
) -> Comparison:
    """Compare the runs at and below these paths, with all models unless some are named."""
    data = gather(paths, measure.metric)
    if not data.runs:
        reasons = "\n".join(f"  {item.path}: {item.reason}" for item in data.omitted[:10])
        raise UsageError(f"There are no runs to compare.\n{reasons}")
    runs = [*data.runs.values()]
    measure = measure.directed(run.environment for run in runs)
    methods, chosen = methods_of(runs, by)
    last = measure.last or last_rounds(min(run.settings.rounds for run in runs))
    entries = {e.place: e for method in methods for e in _entries(method, data, last, measure)}
    base = entries[_baseline([*entries.values()], baseline, models)]
    kept = {p: e for p, e in entries.items() if e is base or not models or e.heading in models}
    check(len(kept) > 1, f"Only {base.name} was found; a comparison needs at least two.")
    compared = with_gains(kept, lambda entry: None if entry is base else base, None)
    rows, headings = ([*dict.fromkeys(place[part] for place in kept)] for part in (0, 2))
    title = f"Comparison with {base.name}"
    sheet = own_sheet("compare", title, last, rows=rows, headings=headings)
    return Comparison(
        table=Table(sheet, last, compared, data),
        baseline=base,
        methods={method.name: method for method in methods},
        by=chosen,
        measure=measure,
        omitted=[*data.omitted, *_repeats(methods, entries.values())],
    )


def _entries(method: Method, data: Data, last: int, measure: Measure) -> Iterator[Entry]:
    """The models of a method, plain first; a run that was never evaluated counts for all."""
    models = dict.fromkeys(model for run in method.runs for model in run.models) or [PLAIN]
    for model in sorted(models, key=lambda model: (model != PLAIN, by_size(model))):
        members: dict[int, Member] = {}
        for run in sorted(method.runs, key=lambda run: not run.models):
            if model in run.models or not run.models:
                seed = run.settings.seed
                members.setdefault(seed, member(seed, run, model, data, last, measure))
        yield entry_of(method.name, "", model, [members[seed] for seed in sorted(members)])


def _baseline(rows: Sequence[Entry], name: str | None, models: Sequence[str]) -> Place:
    """The entry with that name; for the name of a method, its first that is shown."""
    for model in models:
        if model not in {row.heading for row in rows}:
            raise unknown("model", model, {row.heading for row in rows})
    shown = [row for row in rows if not models or row.heading in models]
    if name is None:
        return shown[0].place
    exact = [row for row in rows if row.name == name]
    found = exact or [row for row in shown if row.row == name]
    if not found:
        raise unknown("baseline", name, {row.name if "/" in name else row.row for row in rows})
    return found[0].place


def _repeats(methods: Sequence[Method], entries: Iterable[Entry]) -> Iterator[Omitted]:
    """Runs whose models all come from another run with the same settings and seed."""
    used = {m.run.number for entry in entries for m in entry.members if m.run}
    for method in methods:
        first = {run.settings.seed: run.path for run in reversed(method.runs) if run.number in used}
        for run in method.runs:
            if run.number not in used:
                reason = f"the same settings and seed as {first[run.settings.seed]}"
                yield Omitted(str(run.path), reason)


# The table and its notes


def grid(comparison: Comparison) -> Grid:
    """A line per entry; the best of each column is marked."""
    measure, rows = comparison.measure, comparison.rows
    difference = "difference [95 %]" if comparison.tests else "difference"
    header = ["method", "model", measure.title, "seeds", difference, "p", "Holm's p", "won:lost"]
    speeds, sent = [_speed(row) for row in rows], [_sent(row) for row in rows]
    if measure.target is not None:
        unit = " %" if measure.is_share else ""
        header.append(f"rounds to {measure.factor * measure.target:g}{unit}")
        header += ["MB sent"] if _any(sent) else []
    lines, best = [], set()
    for number, row in enumerate(rows):
        gain = row.gain
        cells = [row.row, row.heading]
        cells.append(row.text or measure.spread(row.mean, row.deviation))
        cells.append(_seeds(row))
        if gain is None:
            cells += ["baseline" if row.place == comparison.baseline.place else "", "", "", ""]
        else:
            cells += [measure.interval(gain), _p(gain.p), _p(gain.holm)]
            cells.append(f"{comparison.won(row)}:{comparison.won(row, -1)}")
        if measure.target is not None:
            some = f"{len(row.reached)} of {row.seeds} seeds" if row.seeds else ""
            cells.append(some if isnan(speeds[number]) else f"{speeds[number]:.0f}")
            cells += [megabytes(sent[number])] if _any(sent) else []
        lines.append(cells)
        best |= {(number, 2)} if row is comparison.best else set()
        best |= {(number, 4)} if row is comparison.greatest else set()
        best |= {(number, 8)} if speeds[number] == _least(speeds) else set()
        best |= {(number, 9)} if sent[number] == _least(sent) else set()
    return Grid(2, header, lines, best)


def _any(values: Sequence[float]) -> bool:
    return not all(map(isnan, values))


def _least(values: Sequence[float]) -> float:
    return min((value for value in values if not isnan(value)), default=nan)


def _seeds(row: Entry) -> str:
    """The number of finished seeds, and of all if that differs."""
    done, planned = len(row.scores), len(row.members)
    return f"{done}" if done == planned else f"{done} of {planned}"


def same_seeds(comparison: Comparison) -> bool:
    """Whether all rows have the same number of seeds, which the caption then states."""
    return len({_seeds(row) for row in comparison.rows}) == 1


def _p(p: float) -> str:
    return "" if isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _speed(row: Entry) -> float:
    """Mean rounds to the target; NaN unless every seed reaches it."""
    whole = row.seeds and len(row.reached) == row.seeds
    return float(np.mean(row.reached)) if whole else nan


def _sent(row: Entry) -> float:
    """The mean bytes to the target; NaN unless every seed reaches it and recorded them."""
    return nan if isnan(_speed(row)) else row.sent


def caption(comparison: Comparison) -> list[str]:
    """How to read the table, as a list of sentences."""
    measure, rows, base = comparison.measure, comparison.rows, comparison.baseline
    counts = {len(row.scores) for row in rows if row.scores}
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    spread = " of one seed" if number == "1 " else f", ± standard deviation over {number}seeds"
    last = f"mean over the last {comparison.table.last} rounds{spread}"
    lines = [f"{measure.title.capitalize()}: {last}."]
    if any(not isnan(_sent(row)) for row in rows):
        older = any(isnan(_sent(row)) and not isnan(_speed(row)) for row in rows)
        lines[0] += MEGABYTES + (OLDER if older else "")
    pairs = [gain.size for gain in comparison.table.gains]
    if not pairs:
        return lines
    lines.append(f"Difference from {base.name}, paired by seed")
    if comparison.tests:
        lines[1] += f", with Student's 95 % interval. † p ≤ {RISK:g} after Holm's correction"
        lines[1] += f" for {comparison.tests} comparisons" if comparison.tests > 1 else ""
    lines[1] += "."
    if 1 in pairs:
        lines.append("One shared seed: no interval. One seed says nothing about others.")
    return lines


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know about these runs, as a list of sentences."""
    return [*_unfair(comparison), *_unpaired(comparison), *_unused(comparison)]


def _unfair(comparison: Comparison) -> Iterator[str]:
    """Other settings in which methods differ; methods with the same difference share a sentence."""
    base = comparison.methods[comparison.baseline.row]
    alike: dict[str, list[str]] = {}
    for name in comparison.table.sheet.rows:
        method = comparison.methods[name]
        keys = also_differ(method, base, comparison.by)
        text = ", ".join(f"{key} ({method.facts[key]}, not {base.facts[key]})" for key in keys)
        alike.setdefault(text, []).append(name)
    for text, names in alike.items():
        if text:
            them = "; ".join(names)
            yield f"Not a fair comparison: these and {base.name} also differ in {text}: {them}."


def _unpaired(comparison: Comparison) -> Iterator[str]:
    base = comparison.baseline
    if base.diverged or not base.scores:
        yield f"The baseline {base.name} has no number, so there are no differences."
        return
    lacking: dict[str, list[str]] = {}
    for row in comparison.rows:
        extra, missing = (
            ", ".join(map(str, sorted(a.scores.keys() - b.scores.keys())))
            for a, b in ((row, base), (base, row))
        )
        if extra and not row.diverged:
            text = f"Not paired, as {base.name} lacks them: seeds {extra} of"
            lacking.setdefault(text, []).append(row.name)
        if missing and not row.diverged:
            text = f"Not paired: seeds {missing} of {base.name}, which are missing in"
            lacking.setdefault(text, []).append(row.name)
    yield from (f"{text} {'; '.join(names)}." for text, names in lacking.items())


def _unused(comparison: Comparison) -> Iterator[str]:
    """Runs that diverged or are unfinished, each once."""
    lines: dict[str, None] = {}
    for row in comparison.rows:
        for one in row.members:
            assert one.run is not None
            where = f"{row.row}, seed {one.seed}, {one.run.progress}: "
            if one.diverged:
                lines[f"Diverged: {where}{one.run.path}"] = None
            elif not one.counts:
                done = one.run.state == "done"
                why = "no evaluation in the last rounds" if done else one.run.state
                lines[f"Not counted, {why}: {where}{one.run.path}"] = None
    yield from lines


# Files


def check_out(out: Path, force: bool) -> None:
    """Raise unless `out` is free, or is a comparison and `force` is set."""
    check_place(out, COMPARED, "comparison", force)


def write_comparison(comparison: Comparison, out: Path, command: str, force: bool = False) -> None:
    """Write compare.md, .tex, .csv, .png and .pdf, either all of them or none."""
    check_out(out, force)
    texts = {
        COMPARED: f"wima {__version__}\n",
        "compare.md": markdown(comparison, command),
        "compare.tex": latex(comparison, command),
        "compare.csv": data_csv(comparison),
    }
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        for name, text in texts.items():  # file names may be invalid Unicode
            (draft / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        draw_comparison(comparison.table, comparison.baseline, comparison.measure, draft)


def markdown(comparison: Comparison, command: str) -> str:
    lines = [*caption(comparison), "Bold: the best of a column.", *warnings(comparison)]
    lines += [f"Left out: {item.path}: {item.reason}" for item in comparison.omitted]
    title = f"# Comparison with {in_markdown(comparison.baseline.name)}"
    made = f"Made by `{' '.join(command.split())}`, wima {__version__}."
    table = markdown_table(grid(comparison), bold=True)
    return "\n\n".join([title, made, table, markdown_list(lines)]) + "\n"


def latex(comparison: Comparison, command: str) -> str:
    """A table environment for a document that loads booktabs; narrow enough for a paper.

    Constant columns are in the caption or left out, and so are p-values other than Holm's.
    """
    unwanted = {SEEDS} if same_seeds(comparison) else set()
    unwanted |= {MODEL} if len(comparison.table.sheet.headings) == 1 else set()
    unwanted |= {P, WON} if comparison.tests else {P, HOLM, WON}
    body = tabular(without(grid(comparison), unwanted), papers=False)
    comments = [f"{command} (wima {__version__})", *warnings(comparison), r"\usepackage{booktabs}"]
    return environment(comments, " ".join(caption(comparison)), body)


def without(table: Grid, unwanted: set[int]) -> Grid:
    """A table without some columns."""
    kept = [column for column in range(len(table.header)) if column not in unwanted]
    lines = [[line[column] for column in kept] for line in table.lines]
    best = {(number, kept.index(column)) for number, column in table.best if column in kept}
    labels = sum(column < table.labels for column in kept)
    return Grid(labels, [table.header[column] for column in kept], lines, best)


def data_csv(comparison: Comparison) -> str:
    """Every number as recorded: a line per seed, and one without a seed for all seeds."""
    header = [*DATA, *(["reached_bytes"] if _any([_sent(row) for row in comparison.rows]) else [])]
    lines: list[dict[str, Any]] = []
    for row in comparison.rows:
        for one in row.members:
            run: Source | None = one.run
            assert run is not None
            line = {"method": row.row, "model": row.heading, "seed": one.seed, "run": run.path}
            line |= {"state": run.state, "rounds_done": run.done, "rounds": run.settings.rounds}
            line |= one.score._asdict() if one.score else {}
            lines.append({**line, "reached_bytes": one.sent})
        line = {
            "method": row.row,
            "model": row.heading,
            "mean": row.mean,
            "deviation": row.deviation,
            "reached": _speed(row),
            "seeds": len(row.scores),
            "reached_bytes": _sent(row),
        }
        if gain := row.gain:
            line |= {"pairs": gain.size, "difference": gain.mean, "p": gain.p, "p_holm": gain.holm}
            line |= {"low": gain.mean - gain.half, "high": gain.mean + gain.half}
            line |= {"won": comparison.won(row), "lost": comparison.won(row, -1)}
        lines.append(line)
    return csv_text([header, *([line.get(name) for name in header] for line in lines)])
