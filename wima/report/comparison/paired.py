"""Methods and models against a baseline: levels over seeds, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from wima.core.errors import UsageError, check, unknown
from wima.core.statistics import last_rounds
from wima.report.comparison.methods import Method, by_size, methods_of
from wima.report.gather import Omitted, Trace, gather
from wima.report.measure import Measure
from wima.report.statistics import (
    Interval,
    corrected,
    gain_over_seeds,
    mean_sent,
    over_seeds,
    score,
)
from wima.report.tables import PLAIN, Member


class Row(NamedTuple):
    """One model of one method."""

    method: Method
    model: str
    members: list[Member]  # one per seed
    difference: Interval | None = None  # from the baseline, over the seeds that both have
    won: int = 0  # seeds in which this row is better than the baseline
    lost: int = 0

    @property
    def name(self) -> str:
        return f"{self.method.name}/{self.model}"

    @property
    def means(self) -> dict[int, float]:
        """Seed -> mean over the last rounds, for finished runs."""
        return {m.seed: m.score.mean for m in self.members if m.counts and m.score}

    @property
    def level(self) -> tuple[float, float]:
        """Mean and deviation over seeds; NaN if one diverged: the others would look too good."""
        return (nan, nan) if self.diverged else over_seeds([*self.means.values()])

    @property
    def diverged(self) -> bool:
        return any(member.diverged for member in self.members)

    @property
    def reached(self) -> list[int]:
        """The rounds to the target, for the seeds that reach it."""
        scores = [member.score for member in self.members if member.counts and member.score]
        return [s.reached for s in scores if s.reached is not None]

    @property
    def sent(self) -> float:
        """The mean bytes to the target; NaN unless every seed reaches it and recorded them."""
        sent = [member.sent for member in self.members if member.counts]
        return nan if self.diverged else mean_sent(sent)


class Comparison(NamedTuple):
    """Rows to compare; all but the baseline have a difference if they share seeds with it."""

    rows: list[Row]
    baseline: Row
    by: list[str]  # the settings that name the methods
    measure: Measure
    last: int  # rounds in the mean
    omitted: list[Omitted]

    @property
    def tests(self) -> int:
        """The number of p-values."""
        return sum(not isnan(row.difference.p) for row in self.rows if row.difference)

    @property
    def sent(self) -> bool:
        """Whether any row has the bytes to the target."""
        return any(not isnan(row.sent) for row in self.rows)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(row.method.name for row in self.rows))

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def best(self) -> Row | None:
        """The row with the best level, if any has one."""
        levels = {place: self.measure.sign * row.level[0] for place, row in enumerate(self.rows)}
        known = {place: level for place, level in levels.items() if not isnan(level)}
        return self.rows[max(known, key=known.__getitem__)] if known else None

    @property
    def greatest(self) -> Row | None:
        """The row that improves most on the baseline, if any does."""
        sign = self.measure.sign
        gains = {n: sign * r.difference.mean for n, r in enumerate(self.rows) if r.difference}
        place = max(gains, key=gains.__getitem__, default=None)
        return None if place is None or gains[place] <= 0 else self.rows[place]


def compare(
    paths: Sequence[Path],
    measure: Measure,
    baseline: str | None = None,
    models: Sequence[str] = (),
    by: Sequence[str] = (),
) -> Comparison:
    """Compare the runs at and below these paths, with all models unless some are named."""
    found = gather(paths, measure.metric)
    if not found.runs:
        reasons = "\n".join(f"  {item.path}: {item.reason}" for item in found.omitted[:10])
        raise UsageError(f"There are no runs to compare.\n{reasons}")
    runs = [*found.runs.values()]
    methods, chosen = methods_of(runs, by)
    last = measure.last or last_rounds(min(run.settings.rounds for run in runs))
    rows = [row for method in methods for row in _rows(method, last, measure)]
    shown = _shown(rows, models)
    base = _baseline(rows, shown, baseline)
    shown = [row for row in rows if row is base or not models or row.model in models]
    check(len(shown) > 1, f"Only {shown[0].name} was found; a comparison needs at least two.")
    compared = [row if row is base else _paired(row, base, measure.sign) for row in shown]
    omitted = [*found.omitted, *_repeats(methods, rows)]
    return Comparison(_with_holm(compared), base, chosen, measure, last, omitted)


def _rows(method: Method, last: int, measure: Measure) -> list[Row]:
    """A row per model, plain first."""
    models = dict.fromkeys(model for run in method.runs for model in run.curves) or [PLAIN]
    ordered = sorted(models, key=lambda model: (model != PLAIN, by_size(model)))
    return [Row(method, model, _members(method.runs, model, last, measure)) for model in ordered]


def _members(runs: Sequence[Trace], model: str, last: int, measure: Measure) -> list[Member]:
    """One member per seed of a model; a run that was never evaluated counts for all models."""
    members: dict[int, Member] = {}
    for run in sorted(runs, key=lambda run: not run.curves):
        if model in run.curves:
            numbers = score(run.curves[model], run.done, last, measure.target, measure.sign)
            members.setdefault(run.settings.seed, Member(run.settings.seed, model, run, numbers))
        elif not run.curves:
            members.setdefault(run.settings.seed, Member(run.settings.seed, model, run, None))
    return [members[seed] for seed in sorted(members)]


def _shown(rows: Sequence[Row], models: Sequence[str]) -> list[Row]:
    known = {row.model for row in rows}
    for model in models:
        if model not in known:
            raise unknown("model", model, known)
    return [row for row in rows if not models or row.model in models]


def _baseline(rows: Sequence[Row], shown: Sequence[Row], name: str | None) -> Row:
    """The row with that name; for the name of a method, its first row that is shown."""
    if name is None:
        return shown[0]
    exact = [row for row in rows if row.name == name]
    found = exact or [row for row in shown if row.method.name == name]
    if not found:
        known = {row.name if "/" in name else row.method.name for row in rows}
        raise unknown("baseline", name, known)
    return found[0]


def _paired(row: Row, base: Row, sign: int) -> Row:
    """The row with its difference from the baseline, paired by seed: both saw the same cohorts."""
    if row.diverged or base.diverged:
        return row
    own, other = row.means, base.means
    differences = [own[seed] - other[seed] for seed in own if seed in other]
    won, lost = (sum(s * sign * d > 0 for d in differences) for s in (1, -1))
    found = gain_over_seeds(differences) if differences else None
    return row._replace(difference=found, won=won, lost=lost)


def _with_holm(rows: Sequence[Row]) -> list[Row]:
    """The rows with p-values corrected for the number of comparisons."""
    made = iter(corrected([row.difference for row in rows if row.difference]))
    return [row._replace(difference=next(made)) if row.difference else row for row in rows]


def _repeats(methods: Iterable[Method], rows: Iterable[Row]) -> list[Omitted]:
    """Runs whose models all come from another run with the same settings and seed."""
    used = {id(member.run) for row in rows for member in row.members}
    repeats = []
    for method in methods:
        first = {run.settings.seed: run.path for run in reversed(method.runs) if id(run) in used}
        for run in method.runs:
            if id(run) not in used:
                reason = f"the same settings and seed as {first[run.settings.seed]}"
                repeats.append(Omitted(str(run.path), reason))
    return repeats
