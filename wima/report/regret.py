"""How far rules that choose a window are behind the best window in hindsight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from wima.report.measure import Measure
from wima.report.statistics import Curve
from wima.report.tables import PLAIN, Member, Table

FIXED = "W = "  # headings that start with it are windows to choose from in hindsight
LAST, MIDDLE = (2 / 3, 1.0), (1 / 3, 2 / 3)  # fractions of the rounds


class Regret(NamedTuple):
    """One run over a part of its rounds; numbers are as recorded."""

    row: str
    column: str
    plain: float
    best: float  # of plain and the fixed windows
    window: str  # the best window
    behind: dict[str, float]  # rule -> its value minus the best


def regrets(table: Table, measure: Measure, part: tuple[float, float]) -> list[Regret]:
    """The regret of every finished run over that part of its rounds."""
    found = (_regret(place, models, measure, part) for place, models in done_runs(table))
    return [regret for regret in found if regret is not None]


def done_runs(table: Table) -> Iterator[tuple[tuple[str, str], dict[str, Member]]]:
    """Row and column of each finished run, with its models by heading."""
    for row in table.sheet.rows:
        for column in table.sheet.columns:
            entries = [table.entry(row, column, heading) for heading in table.sheet.headings]
            seeds: dict[int, dict[str, Member]] = {}
            for entry in filter(None, entries):
                for member in entry.members:
                    seeds.setdefault(member.seed, {})[entry.heading] = member
            for _, models in sorted(seeds.items()):
                run = models[PLAIN].run if PLAIN in models else None
                if run is not None and run.state == "done":
                    yield (row, column), models


def _regret(
    place: tuple[str, str], models: dict[str, Member], measure: Measure, part: tuple[float, float]
) -> Regret | None:
    values = {heading: _mean(member, part) for heading, member in models.items()}
    sizes = fixed_windows(models)
    if any(isnan(values[heading]) for heading in sizes):
        return None
    best = max(sizes, key=lambda heading: measure.sign * values[heading])
    behind = {h: v - values[best] for h, v in values.items() if not (h in sizes or isnan(v))}
    return Regret(*place, values[PLAIN], values[best], str(sizes[best]), behind)


def fixed_windows(models: dict[str, Member]) -> dict[str, int]:
    """The headings to choose from in hindsight, with their windows; plain counts as 1.

    At smaller scales, the window of the model differs from that in the heading.
    """
    found = {h: re.fullmatch(r"wima(\d+)", m.model) for h, m in models.items()}
    own = {h: int(match[1]) for h, match in found.items() if match and h.startswith(FIXED)}
    return {PLAIN: 1, **own}


def _mean(member: Member, part: tuple[float, float]) -> float:
    """The mean of a model's curve over that part of the rounds."""
    assert member.run is not None
    curve = member.run.curves.get(member.model, Curve(np.zeros(0, np.int64), np.zeros(0)))
    low, high = (share * member.run.done for share in part)
    values = curve.values[(curve.rounds > low) & (curve.rounds <= high)]
    return float(values.mean()) if len(values) else float("nan")


def regret_lines(table: Table, measure: Measure) -> tuple[list[str], list[list[str]]]:
    """A line per method and data set (the mean over seeds), then the means and the worst run."""
    late, middle = (regrets(table, measure, part) for part in (LAST, MIDDLE))
    rules = [h for h in table.sheet.headings if h != PLAIN and not h.startswith(FIXED)]
    first, others = rules[:1], rules[1:]
    header = ["", "", "plain", "best window", "best"]
    header += [f"{rule} − {of}" for rule in first for of in ("plain", "best", "best before")]
    header += [f"{rule} − best" for rule in others]
    lines = []
    for place in dict.fromkeys((regret.row, regret.column) for regret in late):
        own, before = ([r for r in all_ if r[:2] == place] for all_ in (late, middle))
        windows = ", ".join(dict.fromkeys(r.window for r in own))
        level = [measure.number(_of([r.plain for r in own])), windows]
        level.append(measure.number(_of([r.best for r in own])))
        lines.append([*place, *level, *_behind(own, before, first, others, measure)])
    columns = [column for column in table.sheet.columns if len(table.sheet.columns) > 1]
    for column in columns:
        own, before = ([r for r in all_ if r.column == column] for all_ in (late, middle))
        lines.append(["mean", column, "", "", "", *_behind(own, before, first, others, measure)])
    for name, worst in (("mean of all runs", False), ("worst of all runs", True)):
        numbers = _behind(late, middle, first, others, measure, worst)
        lines.append([name, "", "", "", "", *numbers])
    return header, lines


def _behind(
    late: Sequence[Regret],
    middle: Sequence[Regret],
    first: Iterable[str],
    others: Iterable[str],
    measure: Measure,
    worst: bool = False,
) -> list[str]:
    numbers = []
    for rule in first:
        numbers.append([r.behind[rule] + r.best - r.plain for r in late if rule in r.behind])
        numbers += [[r.behind[rule] for r in of if rule in r.behind] for of in (late, middle)]
    numbers += [[r.behind[rule] for r in late if rule in r.behind] for rule in others]
    return [measure.number(_of(n, measure.sign if worst else 0), signed=True) for n in numbers]


def _of(values: Sequence[float], worst: int = 0) -> float:
    """The mean; or the worst value, if higher (1) or lower (-1) is better."""
    if not values:
        return float("nan")
    return worst * min(worst * v for v in values) if worst else sum(values) / len(values)


NOTES = [
    "Mean over the last third of the rounds (before: the second third), then over seeds.",
    "Best: the best of plain and the fixed windows, in hindsight, for each run and third.",
    "The numbers show how far a rule that chooses before or during a run is behind the best.",
]
