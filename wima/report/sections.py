"""The sections below a table: clients, fine-tuning and calibration, if its runs recorded them.

Numbers are means over seeds; gains over plain are paired by seed.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import isnan, nan
from typing import NamedTuple

import numpy as np

from wima.core.measure import PLAIN, Measure
from wima.report.inputs import LEVELS
from wima.report.notes import holm_note
from wima.report.statistics import Interval, corrected, gain, late
from wima.report.table import Entry, Grid, Member, Table, places

Points = list[tuple[float, float]]
Numbers = Mapping[str, float]  # of one model in one run, by metric
CALIBRATED = (
    "ECE: expected calibration error, the mean of |accuracy − confidence| over bins of "
    "confidence, weighted by their examples. NLL: negative log-likelihood."
)


class Picture(NamedTuple):
    """A panel per place, all with the same axes."""

    x: str
    y: str
    diagonal: bool
    panels: list[tuple[str, dict[str, Points]]]  # title, and the points of each heading


class Section(NamedTuple):
    """A table with its notes, and a figure of the same models."""

    name: str  # in file names
    title: str
    grid: Grid
    notes: list[str]
    picture: Picture | None = None


class Column(NamedTuple):
    """A metric, and its gain over plain if that has a heading."""

    heading: str
    metric: str
    measure: Measure | None = None  # None: a number of clients
    gain: str = ""

    def text(self, value: float) -> str:
        if self.measure is not None:
            return self.measure.number(value)
        return "" if isnan(value) else f"{value:.1f}".removesuffix(".0")  # a mean over seeds


def below(table: Table) -> list[Section]:
    """The sections that have numbers."""
    runs = table.runs()  # clients were evaluated by this metric, whatever the table shows
    leading = next((run.leading for run in runs if run.leading), "accuracy")
    measure = Measure(leading).directed(run.environment for run in runs)
    columns = [
        Column("mean", "mean", measure, "gain in mean"),
        Column("worst 10 %", "worst", measure, "gain in worst 10 %"),
        Column("gained", "gained"),
        Column("lost", "lost"),
    ]
    sections = []
    spread = [Column("deviation", "deviation", measure)]
    spread += [Column(f"{level} %", level, measure) for level in ("25", "50", "75")]
    if found := _grid(table, [columns[0], *spread, *columns[1:]], {"": "clients"}):
        grid, notes = found
        quartiles = "25, 50, 75 %: quartiles of clients."
        notes = [*_client_notes(table, "clients", measure), quartiles, *notes]
        sections.append(Section("clients", "Clients", grid, notes, _distribution(table, measure)))
    if found := _grid(table, columns, {"before": "before", "after": "after"}):
        grid, notes = found
        stage = "Before and after fine-tuning on each client."
        notes = [stage, *_client_notes(table, "before", measure), *notes]
        sections.append(Section("finetuned", "Fine-tuning", grid, notes))
    columns = [
        Column("ECE", "ece", Measure("ece"), "change in ECE"),
        Column("NLL", "loss", Measure("loss"), "change in NLL"),
    ]
    if found := _grid(table, columns, {"": ""}):
        grid, notes = found
        notes = [f"Mean over the last {table.last} rounds; lower is better.", CALIBRATED, *notes]
        panels = _panels(table, _reliability)
        if panels:
            notes.append("Picture: the last evaluated round; bins of several seeds are pooled.")
        picture = Picture("mean confidence of a bin, %", "accuracy, %", True, panels)
        sections.append(Section("calibration", "Calibration", grid, notes, picture))
    return sections


def _distribution(table: Table, measure: Measure) -> Picture:
    """The cumulative distribution over clients: the mean of each quantile over seeds."""
    metrics = [f"clients.{level}" for level in LEVELS]

    def draw(members: Sequence[Member]) -> Points:
        rows = [m.run.numbers(m.model, metrics) for m in members if m.run]
        rows = [row for row in rows if row]
        values = measure.factor * np.mean(rows, axis=0) if rows else np.empty(0)
        return list(zip(values.tolist(), map(float, LEVELS), strict=False))

    accuracy = measure.title.replace(measure.metric, f"{measure.metric} of a client")
    panels = _panels(table, draw)
    return Picture(accuracy, "share of clients with at most this, %", False, panels)


def _reliability(members: Sequence[Member]) -> Points:
    """Mean confidence and accuracy of each non-empty bin, in percent."""
    runs = [m.run.bins[m.model] for m in members if m.run and m.model in m.run.bins]
    points = []
    for bins in zip(*runs, strict=False):
        filled = np.array([own for own in bins if own[0]]).reshape(-1, 3)
        count = filled[:, 0].sum()
        if count:
            confidence, accuracy = 100 * (filled[:, 0] @ filled[:, 1:]) / count
            points.append((float(confidence), float(accuracy)))
    return points


def _client_notes(table: Table, kind: str, measure: Measure) -> list[str]:
    """What the numbers mean."""
    counted = [
        c for run in table.runs() for (_, m), c in run.curves.items() if m == f"{kind}.count"
    ]
    rounds, counts = (
        f"{min(own):.0f}" if min(own) == max(own) else f"{min(own):.0f} to {max(own):.0f}"
        for own in ([c.rounds[0] for c in counted], [c.values[0] for c in counted])
    )
    when = f"in the last round in which clients were evaluated ({rounds})"
    return [
        f"{measure.title.capitalize()}, over {counts} clients, {when}.",
        "Worst 10 %: the mean of the worst tenth of clients. Gained, lost: clients above and "
        "below their own value with the plain model.",
    ]


def _numbers(member: Member, kind: str, columns: Sequence[Column], last: int) -> Numbers:
    """The numbers that the run recorded for this model, by metric; empty if it has none.

    Those of a kind (clients, before, after) are the newest, the others means over the last rounds.
    """
    run = member.run
    if run is None:
        return {}
    names = {c.metric: f"{kind}.{c.metric}" if kind else c.metric for c in columns}
    found = {m: run.curves.get((member.model, n)) for m, n in names.items()}
    curves = {metric: curve for metric, curve in found.items() if curve is not None}
    if kind:
        return {metric: float(curve.values[-1]) for metric, curve in curves.items()}
    if len(curves) < len(columns):
        return {}
    values = {metric: late(curve, run.done, last) for metric, curve in curves.items()}
    return {metric: float(np.mean(own)) for metric, own in values.items() if len(own)}


def _grid(
    table: Table, columns: Sequence[Column], kinds: Mapping[str, str]
) -> tuple[Grid, list[str]] | None:
    """A line for each model and kind for which a run has numbers, with notes; None without any.

    kinds: by label.  Holm's correction is over all gains.
    """

    def by_seed(entry: Entry | None, kind: str) -> dict[int, Numbers]:
        """The numbers of the finished seeds; empty if one of them diverged."""
        members = [] if entry is None or entry.text else [m for m in entry.members if m.counts]
        numbers = {m.seed: _numbers(m, kind, columns, table.last) for m in members}
        return {seed: own for seed, own in numbers.items() if own}

    lines: list[tuple[list[str], Entry, dict[int, Numbers]]] = []
    gains: dict[tuple[int, str], Interval] = {}
    gained = [column.metric for column in columns if column.gain]
    for (entry, names), (label, kind) in product(places(table), kinds.items()):
        if not any(_numbers(member, kind, columns, table.last) for member in entry.members):
            continue
        values = by_seed(entry, kind)
        plain = by_seed(None if entry.heading == PLAIN else table.plain(entry), kind)
        shared = [(values[seed], plain[seed]) for seed in values if seed in plain]
        for metric in gained if shared else []:
            pairs = [own[metric] - base[metric] for own, base in shared]
            gains[len(lines), metric] = gain(pairs, "seeds")
        lines.append(([*names, entry.heading, *([label] if label else [])], entry, values))
    if not lines:
        return None
    gains = dict(zip(gains, corrected([*gains.values()]), strict=True))

    counts = {len(values) for *_, values in lines if values}
    seeds = ["seeds"] if len(counts) > 1 else []
    header = [""] * len(lines[0][0])
    for column in columns:
        header += [column.heading, column.gain] if column.gain and gains else [column.heading]
    body = []
    for number, (labels, entry, values) in enumerate(lines):
        cells = []
        for column in columns:
            means = [own[column.metric] for own in values.values() if column.metric in own]
            cells.append(column.text(float(np.mean(means)) if means else nan))
            if column.gain and gains:
                change = gains.get((number, column.metric))
                measure = column.measure or Measure()
                cells.append("" if change is None else measure.interval(change))
        cells = cells if values else [entry.text or "-", *cells[1:]]
        body.append([*labels, *cells, *(str(len(values)) for _ in seeds)])

    word = next(column.gain for column in columns if column.gain).split(" ")[0].capitalize()
    over = f"{max(counts, default=0)} seeds" if len(counts) == 1 else "seeds"
    notes = [f"Means over {over}."] if counts - {0, 1} else []
    intervals = sum(not isnan(one.half) for one in gains.values())
    if intervals:
        notes += [f"{word}: against plain, paired by seed, with Student's 95 % interval."]
        notes += [holm_note(intervals)]
    elif gains:
        notes += [f"{word}: against plain. One seed: no interval; this says nothing about others."]
    return Grid(len(lines[0][0]), [*header, *seeds], body), notes


def _panels(
    table: Table, draw: Callable[[Sequence[Member]], Points]
) -> list[tuple[str, dict[str, Points]]]:
    """A panel for each place in which a model has points, from finished runs."""
    panels: dict[str, dict[str, Points]] = {}
    for entry, names in places(table):
        found = [] if entry.text else draw([m for m in entry.members if m.counts])
        points = [point for point in found if np.isfinite(point).all()]
        if points:
            panels.setdefault(" · ".join(names), {})[entry.heading] = points
    return [*panels.items()]
