"""Results of models on single clients, and after fine-tuning on each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np

from wima.core.statistics import QUANTILES
from wima.report.measure import Measure
from wima.report.section import (
    Column,
    Numbers,
    Pick,
    Picture,
    Points,
    Section,
    grid_of,
    lines_of,
    panels_of,
)
from wima.report.tables import Member, Table

LEVELS = [f"{100 * share:g}" for share in QUANTILES]  # names of the recorded quantiles


class Count(Measure):
    """A number of clients; a mean over seeds may have a decimal."""

    def number(self, value: float, signed: bool = False) -> str:
        return "" if isnan(value) else f"{value:.1f}".removesuffix(".0")


def clients(table: Table) -> Section | None:
    """Mean, spread and quartiles over clients, and how many gained or lost by averaging."""
    pick = partial(_numbers, "clients", "")
    lines = lines_of(table, {"": pick})
    if not lines:
        return None
    measure = _measure(table)
    spread = [Column("deviation", "deviation", measure)]
    spread += [Column(f"{level} %", level, measure) for level in ("25", "50", "75")]
    mean, *rest = _columns(measure)
    grid, notes = grid_of(lines, [mean, *spread, *rest])
    told = [*_notes(table, "clients", measure), "25, 50, 75 %: quartiles of clients.", *notes]
    accuracy = measure.title.replace(measure.metric, f"{measure.metric} of a client")
    axes = (accuracy, "share of clients with at most this, %")
    draw = partial(_distribution, pick, measure.factor)
    picture = Picture(*axes, False, panels_of(table, draw))
    return Section("clients", "Clients", grid, told, picture)


def finetuned(table: Table) -> Section | None:
    """The same before and after each client fine-tunes the model on its own examples."""
    lines = lines_of(table, {s: partial(_numbers, "finetuned", s) for s in ("before", "after")})
    if not lines:
        return None
    measure = _measure(table)
    grid, notes = grid_of(lines, _columns(measure))
    told = ["Before and after fine-tuning on each client.", *_notes(table, "finetuned", measure)]
    return Section("finetuned", "Fine-tuning", grid, [*told, *notes])


def _columns(measure: Measure) -> list[Column]:
    return [
        Column("mean", "mean", measure, "gain in mean"),
        Column("worst 10 %", "worst", measure, "gain in worst 10 %"),
        Column("gained", "gained", Count()),
        Column("lost", "lost", Count()),
    ]


def _measure(table: Table) -> Measure:
    """The metric that clients were evaluated by, whatever the table shows."""
    return Measure(next(run.leading for run in table.runs() if run.extras.newest))


def _notes(table: Table, key: str, measure: Measure) -> list[str]:
    """What the numbers mean."""
    found = [run.extras.newest[key] for run in table.runs() if key in run.extras.newest]
    told = [own.get("before", own)["count"] for _, models in found for own in models.values()]
    rounds, counts = (_range(numbers) for numbers in ([t for t, _ in found], told))
    when = f"in the last round in which clients were evaluated ({rounds})"
    return [
        f"{measure.title.capitalize()}, over {counts} clients, {when}.",
        "Worst 10 %: the mean of the worst tenth of clients. Gained, lost: clients above and "
        "below their own value with the plain model.",
    ]


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def _numbers(key: str, stage: str, member: Member) -> Numbers:
    """The numbers in the last record with this key; quantiles are named by their level."""
    if member.run is None or key not in member.run.extras.newest:
        return {}
    found: Mapping[str, Any] = member.run.extras.newest[key][1].get(member.model, {})
    summary = found.get(stage, {}) if stage else found
    if not summary:
        return {}
    numbers = {name: value for name, value in summary.items() if name != "quantiles"}
    numbers |= dict(zip(LEVELS, summary["quantiles"], strict=True))
    return {name: nan if value is None else value for name, value in numbers.items()}


def _distribution(pick: Pick, factor: float, members: Sequence[Member]) -> Points:
    """The cumulative distribution over clients: the mean of each quantile over seeds."""
    found = [[numbers[level] for level in LEVELS] for m in members if (numbers := pick(m))]
    if not found:
        return []
    values = factor * np.mean(found, axis=0)
    return list(zip(values.tolist(), map(float, LEVELS), strict=True))
