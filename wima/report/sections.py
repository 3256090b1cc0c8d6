"""The sections below a table: clients, fine-tuning and calibration, if its runs recorded them.

Numbers are means over seeds; gains over plain are paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import NamedTuple

import numpy as np

from wima.core.measure import PLAIN, Measure
from wima.report.frame import CALIBRATION, LEVELS
from wima.report.notes import holm_note
from wima.report.statistics import Interval, corrected, gain_over_seeds, late
from wima.report.table import Entry, Grid, Member, Table, places

Points = list[tuple[float, float]]
Numbers = Mapping[str, float]  # of one model in one run, by metric
CALIBRATED = (
    "ECE: expected calibration error, the mean of |accuracy − confidence| over bins of "
    "confidence, weighted by their examples. NLL: negative log-likelihood."
)


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
    made = (_clients(table), _finetuned(table), _calibration(table))
    return [section for section in made if section is not None]


def _clients(table: Table) -> Section | None:
    """Mean, spread and quartiles over clients, and how many gained or lost by averaging."""
    measure = _client_measure(table)
    mean, *rest = _client_columns(measure)
    spread = [Column("deviation", "deviation", measure)]
    spread += [Column(f"{level} %", level, measure) for level in ("25", "50", "75")]
    found = _grid(table, [mean, *spread, *rest], {"": "clients"})
    if found is None:
        return None
    grid, notes = found

    def distribution(members: Sequence[Member]) -> Points:
        """The cumulative distribution over clients: the mean of each quantile over seeds."""
        metrics = [f"clients.{level}" for level in LEVELS]
        rows = [table.data.numbers(m.run, m.model, metrics) for m in members if m.run]
        rows = [row for row in rows if row]
        values = measure.factor * np.mean(rows, axis=0) if rows else np.empty(0)
        return list(zip(values.tolist(), map(float, LEVELS), strict=False))

    accuracy = measure.title.replace(measure.metric, f"{measure.metric} of a client")
    axes = (accuracy, "share of clients with at most this, %")
    picture = Picture(*axes, False, _panels(table, distribution))
    quartiles = "25, 50, 75 %: quartiles of clients."
    notes = [*_client_notes(table, "clients", measure), quartiles, *notes]
    return Section("clients", "Clients", grid, notes, picture)


def _finetuned(table: Table) -> Section | None:
    """The same before and after each client fine-tunes the model on its own examples."""
    measure = _client_measure(table)
    stages = {stage: stage for stage in ("before", "after")}
    found = _grid(table, _client_columns(measure), stages)
    if found is None:
        return None
    grid, notes = found
    stage = "Before and after fine-tuning on each client."
    notes = [stage, *_client_notes(table, "before", measure), *notes]
    return Section("finetuned", "Fine-tuning", grid, notes)


def _calibration(table: Table) -> Section | None:
    """Errors over the last rounds, and accuracy against confidence in the last round."""
    columns = [
        Column("ECE", "ece", Measure("ece"), "change in ECE"),
        Column("NLL", "loss", Measure("loss"), "change in NLL"),
    ]
    found = _grid(table, columns, {"": ""})
    if found is None:
        return None
    grid, notes = found
    notes = [f"Mean over the last {table.last} rounds; lower is better.", CALIBRATED, *notes]
    panels = _panels(table, _reliability)
    if panels:
        notes.append("Picture: the last evaluated round; bins of several seeds are pooled.")
    picture = Picture("mean confidence of a bin, %", "accuracy, %", True, panels)
    return Section("calibration", "Calibration", grid, notes, picture)


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


def _client_measure(table: Table) -> Measure:
    """The metric that clients were evaluated by, whatever the table shows."""
    runs = table.runs()
    leading = next((run.leading for run in runs if run.leading), "accuracy")
    return Measure(leading).directed(run.environment for run in runs)


def _client_columns(measure: Measure) -> list[Column]:
    return [
        Column("mean", "mean", measure, "gain in mean"),
        Column("worst 10 %", "worst", measure, "gain in worst 10 %"),
        Column("gained", "gained"),
        Column("lost", "lost"),
    ]


def _client_notes(table: Table, kind: str, measure: Measure) -> list[str]:
    """What the numbers mean."""
    frame, runs = table.data.frame, [run.number for run in table.runs()]
    counted = frame[(frame.metric == f"{kind}.count") & frame.run.isin(runs)]
    rounds, counts = (
        f"{own.min():.0f}" if own.min() == own.max() else f"{own.min():.0f} to {own.max():.0f}"
        for own in (counted.t, counted.value)
    )
    when = f"in the last round in which clients were evaluated ({rounds})"
    return [
        f"{measure.title.capitalize()}, over {counts} clients, {when}.",
        "Worst 10 %: the mean of the worst tenth of clients. Gained, lost: clients above and "
        "below their own value with the plain model.",
    ]


def _numbers(table: Table, member: Member, kind: str, columns: Sequence[Column]) -> Numbers:
    """The numbers that the run recorded for this model, by metric; empty if it has none.

    Those of a kind (clients, before, after) are the newest, the others means over the last rounds.
    """
    if member.run is None:
        return {}
    curves, run = table.data.curves, member.run
    if kind:
        keys = {c.metric: (run.number, member.model, f"{kind}.{c.metric}") for c in columns}
        return {name: float(curves[key].values[-1]) for name, key in keys.items() if key in curves}
    values = [
        late(curves[run.number, member.model, name], run.done, table.last)
        for name in CALIBRATION
        if (run.number, member.model, name) in curves
    ]
    if len(values) < len(CALIBRATION):
        return {}
    pairs = zip(CALIBRATION, values, strict=True)
    return {name: float(np.mean(own)) for name, own in pairs if len(own)}


def _grid(
    table: Table, columns: Sequence[Column], kinds: Mapping[str, str]
) -> tuple[Grid, list[str]] | None:
    """A line for each model and kind for which a run has numbers, with notes; None without any.

    kinds: by label.  Holm's correction is over all gains.
    """

    def by_seed(entry: Entry | None, kind: str) -> dict[int, Numbers]:
        """The numbers of the finished seeds; empty if one of them diverged."""
        members = [] if entry is None or entry.text else [m for m in entry.members if m.counts]
        numbers = {m.seed: _numbers(table, m, kind, columns) for m in members}
        return {seed: own for seed, own in numbers.items() if own}

    lines: list[tuple[list[str], Entry, dict[int, Numbers], dict[int, Numbers]]] = []
    for entry, names in places(table):
        for label, kind in kinds.items():
            if any(_numbers(table, member, kind, columns) for member in entry.members):
                labels = [*names, entry.heading, *([label] if label else [])]
                base = None if entry.heading == PLAIN else table.entry(*entry.place[:2], PLAIN)
                lines.append((labels, entry, by_seed(entry, kind), by_seed(base, kind)))
    if not lines:
        return None

    gains: dict[tuple[int, str], Interval] = {}
    for number, (_, _, values, plain) in enumerate(lines):
        for metric in (column.metric for column in columns if column.gain):
            pairs = [values[seed][metric] - plain[seed][metric] for seed in values if seed in plain]
            if pairs:
                gains[number, metric] = gain_over_seeds(pairs)
    gains = dict(zip(gains, corrected([*gains.values()]), strict=True))

    counts = {len(values) for _, _, values, _ in lines if values}
    seeds = ["seeds"] if len(counts) > 1 else []
    header = [""] * len(lines[0][0])
    for column in columns:
        header += [column.heading, column.gain] if column.gain and gains else [column.heading]
    body = []
    for number, (labels, entry, values, _) in enumerate(lines):
        cells = []
        for column in columns:
            means = [own[column.metric] for own in values.values() if column.metric in own]
            cells.append(column.text(float(np.mean(means)) if means else nan))
            if column.gain and gains:
                gain = gains.get((number, column.metric))
                measure = column.measure or Measure()
                cells.append("" if gain is None else measure.interval(gain))
        cells = cells if values else [entry.text or "-", *cells[1:]]
        body.append([*labels, *cells, *(str(len(values)) for _ in seeds)])

    word = next(column.gain for column in columns if column.gain).split(" ")[0].capitalize()
    notes = _grid_notes(word, [*gains.values()], counts)
    return Grid(len(lines[0][0]), [*header, *seeds], body), notes


def _grid_notes(word: str, gains: Sequence[Interval], counts: set[int]) -> list[str]:
    over = f"{max(counts, default=0)} seeds" if len(counts) == 1 else "seeds"
    lines = [f"Means over {over}."] if counts - {0, 1} else []
    shown = [gain for gain in gains if not isnan(gain.half)]
    if shown:
        lines += [f"{word}: against plain, paired by seed, with Student's 95 % interval."]
        lines += [holm_note(len(shown))]
    elif gains:
        lines += [f"{word}: against plain. One seed: no interval; this says nothing about others."]
    return lines


def _panels(table: Table, draw: Callable[[Sequence[Member]], Points]) -> list[Panel]:
    """A panel for each place in which a model has points, from finished runs."""
    panels: dict[tuple[str, ...], dict[str, Points]] = {}
    for entry, names in places(table):
        found = [] if entry.text else draw([m for m in entry.members if m.counts])
        points = [point for point in found if np.isfinite(point).all()]
        if points:
            panels.setdefault(tuple(names), {})[entry.heading] = points
    return [Panel(" · ".join(names), lines) for names, lines in panels.items()]
