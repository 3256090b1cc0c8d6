"""What is below a table: notes for its reader, one sentence each, and sections.

A section is about clients, fine-tuning or calibration, if the runs of the table recorded them.  Its
numbers are means over seeds; gains over plain are paired by seed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from wima.core.measure import PLAIN, Measure
from wima.core.statistics import LEAST, RISK
from wima.experiments.plan import scales
from wima.report.inputs import LEVELS
from wima.report.statistics import CONSTANT, Interval, corrected, gain, late
from wima.report.table import Entry, Grid, Member, Table, common_seeds, places
from wima.runs.settings import NOT_IN_RESULTS, Settings, change, make_settings, presets, read_table

# Not mentioned: settings that do not change training, and averagers, which headings show.
SILENT = {"seed", "averagers", "eval_every", "eval_last", "eval_batch_size", *NOT_IN_RESULTS}
SILENT |= {"client_eval_every", "client_sample", "calibration", "finetune"}
NAMED = {"algorithm", "server", "schedule", "data", "alpha"}  # by the rows and columns of a scale
LISTED = 4  # places


def notes(table: Table) -> list[str]:
    """All notes on a table, the command last."""
    sheet = table.sheet
    lines = [level_note(table)]
    where = next((e.printed.where for e in table.entries.values() if e.printed), "")
    if where:
        lines.append(f"In parentheses: the paper's number ({where}), and ours minus the paper's.")
    lines += [*gain_notes(table), *bytes_notes(table)]
    lines += [*settings_notes(table), *_privacy_notes(table)]
    lines += [f"{row}: {whole}." for row, whole in table.long.items()]
    lines += [sheet.note] if sheet.note else []
    return lines + ([f"Command: {sheet.command}"] if sheet.command else [])


def level_note(table: Table) -> str:
    """The rounds and seeds that a number is averaged over."""
    mean = f"{table.measure.title.capitalize()}: mean over the last {table.last} rounds"
    seeds = common_seeds(table)
    return f"{mean}; {seeds}." if seeds == "1 seed" else f"{mean}, then over {seeds or 'seeds'}."


def gain_notes(table: Table) -> list[str]:
    """How to read the intervals of a table."""
    shown = table.intervals
    lines = ["Gain: over plain, paired, with its 95 % interval."] if table.gains else []
    if any(gain.basis == "rounds" for gain in shown):
        lines.append(
            "* One seed: the interval is from the rounds of that run, widened for their "
            "correlation. It says nothing about other seeds."
        )
    constant = [gain for gain in table.gains if gain.is_constant]
    if len(shown) + len(constant) < len(table.gains):
        lines.append(f"No interval: one seed, and fewer than {LEAST} evaluations in these rounds.")
    lines += [CONSTANT] if constant else []
    return [*lines, holm_note(len(shown))] if shown else lines


def holm_note(intervals: int) -> str:
    """How to interpret this many intervals together."""
    return (
        f"Intervals: {intervals}, of which {RISK * intervals:.2g} would exclude zero by chance if "
        "there were no gains. † Still excludes zero after Holm's correction for their number."
    )


def bytes_notes(table: Table) -> list[str]:
    """What MB to the target means, and why some are missing; empty if no run recorded them."""
    recorded = [("", "bytes") in r.curves for r in table.runs() if r.done]
    if table.measure.target is None or not any(recorded):
        return []
    older = "" if all(recorded) else " Older runs did not record them."
    return [f"MB: millions of bytes sent to and from clients until that round.{older}"]


def settings_notes(table: Table) -> list[str]:
    """The windows that headings do not name, and what differs from the presets."""
    windows: dict[str, list[str]] = {}
    for heading in table.sheet.headings:
        entries = [e for e in table.entries.values() if e.heading == heading]
        models = {member.model for entry in entries for member in entry.members}
        wima = re.fullmatch(r"wima(\d+)(-[a-z]+)?", models.pop()) if len(models) == 1 else None
        if wima and heading not in (PLAIN, wima[0]) and "W = " not in heading:
            windows.setdefault(wima[1], []).append(heading)
    lines = [f"{', '.join(names)}: W = {window}." for window, names in windows.items()]
    return [*lines, *filter(None, [differences(table)])]


def _privacy_notes(table: Table) -> list[str]:
    """The privacy budget that the runs of each column have spent, if they are private."""
    spent: dict[str, dict[str, str]] = {}
    for entry in table.entries.values():
        for member in entry.members:
            budget = member.run.numbers("", ["epsilon"]) if member.run else []
            for epsilon in budget:
                shown = "∞" if isnan(epsilon) else f"{epsilon:.3g}"
                spent.setdefault(entry.column, {})[entry.row] = shown
    return [
        f"ε after the last round, {column}: {', '.join(f'{row}: {e}' for row, e in rows.items())}."
        for column, rows in spent.items()
    ]


def differences(table: Table) -> str:
    """How the runs differ from the preset of their data set, at the table's scale.

    A sentence such as `Differs from the preset cifar10 at scale cpu: batch_size = 20.`
    """
    scale, one_column = table.sheet.scale, len(table.sheet.columns) == 1
    places: list[str] = []  # with a run on a known data set
    bases: dict[str, None] = {}
    changed: dict[str, list[str]] = {}

    def is_named(name: str, value: Any, row: str) -> bool:
        """Whether the names in the table already say it."""
        if scale and (name in NAMED or f"{value} {name.split('_')[0]}" in row):
            return True  # "15 clients" is clients_per_round = 15
        known = not table.sheet.cells and name in ("algorithm", "data")
        return known or f"{name}=" in table.long.get(row, row)

    for entry in table.entries.values():
        runs = [member.run for member in entry.members if member.run is not None]
        nearest = _nearest(runs[0].settings, scale) if runs and entry.heading == PLAIN else None
        if nearest is not None:
            preset, values = nearest
            bases[preset] = None
            places.append(entry.row if one_column else f"{entry.row} on {entry.column}")
            for name, value in values.items():
                if not is_named(name, value, entry.row):
                    changed.setdefault(f"{name} = {value}", []).append(places[-1])
    texts = []
    for text, where in changed.items():
        more = f" and {len(where) - LISTED} more" if len(where) > LISTED else ""
        listed = "" if len(where) == len(places) else f" ({', '.join(where[:LISTED])}{more})"
        texts.append(text + listed)
    preset = f"the preset{'s' * (len(bases) > 1)} {', '.join(bases)}"
    at = f" at scale {scale}" if scale else ""
    return f"Differs from {preset}{at}: {'; '.join(texts)}." if texts else ""


def _nearest(settings: Settings, scale: str) -> tuple[str, dict[str, Any]] | None:
    """The preset for that data set with the fewest differences, and these differences."""
    candidates = []
    for name in presets():
        base = _base(name, scale)
        if base.data.name == settings.data.name:
            fields = (field for field in type(settings).model_fields if field not in SILENT)
            pairs = {f: (getattr(settings, f), getattr(base, f)) for f in fields}
            own = {f: mine for f, (mine, its) in pairs.items() if mine != its and mine is not None}
            candidates.append((len(own), name != settings.data.name, name, own))
    return min(candidates)[2:] if candidates else None


@cache
def _base(preset: str, scale: str) -> Settings:
    table = read_table(preset)
    if scale in scales():
        layers = (scales()[scale].set, scales()[scale].presets.get(preset, {}))
        for key, value in (pair for layer in layers for pair in layer.items()):
            change(table, key, value)
    return make_settings(table)


# Sections

Points = list[tuple[float, float]]
Panel = tuple[str, dict[str, Points]]  # title, and the points of each heading
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
        grid, lines = found
        quartiles = "25, 50, 75 %: quartiles of clients."
        lines = [*_client_notes(table, "clients", measure), quartiles, *lines]
        sections.append(Section("clients", "Clients", grid, lines, _distribution(table, measure)))
    if found := _grid(table, columns, {"before": "before", "after": "after"}):
        grid, lines = found
        stage = "Before and after fine-tuning on each client."
        lines = [stage, *_client_notes(table, "before", measure), *lines]
        sections.append(Section("finetuned", "Fine-tuning", grid, lines))
    columns = [
        Column("ECE", "ece", Measure("ece"), "change in ECE"),
        Column("NLL", "loss", Measure("loss"), "change in NLL"),
    ]
    if found := _grid(table, columns, {"": ""}):
        grid, lines = found
        lines = [f"Mean over the last {table.last} rounds; lower is better.", CALIBRATED, *lines]
        panels = _panels(table, _reliability)
        if panels:
            lines.append("Picture: the last evaluated round; bins of several seeds are pooled.")
        picture = Picture("mean confidence of a bin, %", "accuracy, %", True, panels)
        sections.append(Section("calibration", "Calibration", grid, lines, picture))
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
    curves = (item for run in table.runs() for item in run.curves.items())
    counted = [curve for (_, metric), curve in curves if metric == f"{kind}.count"]
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
    remarks = [f"Means over {over}."] if counts - {0, 1} else []
    intervals = sum(not isnan(one.half) for one in gains.values())
    if intervals:
        remarks += [f"{word}: against plain, paired by seed, with Student's 95 % interval."]
        remarks += [holm_note(intervals)]
    constant = any(one.is_constant for one in gains.values())
    remarks += [CONSTANT] if constant else []
    if gains and not (intervals or constant):
        one = "One seed: no interval; this says nothing about others."
        remarks.append(f"{word}: against plain. {one}")
    return Grid(len(lines[0][0]), [*header, *seeds], body), remarks


def _panels(table: Table, draw: Callable[[Sequence[Member]], Points]) -> list[Panel]:
    """A panel for each place in which a model has points, from finished runs."""
    panels: dict[str, dict[str, Points]] = {}
    for entry, names in places(table):
        found = [] if entry.text else draw([m for m in entry.members if m.counts])
        points = [point for point in found if np.isfinite(point).all()]
        if points:
            panels.setdefault(" · ".join(names), {})[entry.heading] = points
    return [*panels.items()]
