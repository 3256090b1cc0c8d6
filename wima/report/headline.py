"""One sentence over all tables: whether averaging helps, by how much and how confidently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan
from statistics import median
from typing import NamedTuple

from wima.core.statistics import RISK, holm
from wima.report.measure import Measure
from wima.report.names import proper
from wima.report.statistics import Interval
from wima.report.tables import PLAIN, Entry, Table

NOT_AVERAGED = ("wima1", PLAIN)  # a mean of one model


class Comparison(NamedTuple):
    """One training with and without an average: the gain over its seeds or rounds."""

    table: Table
    entry: Entry
    gain: Interval  # corrected for the number of comparisons

    @property
    def place(self) -> str:
        return proper(", ".join(filter(None, [self.entry.row, self.entry.column])))

    @property
    def model(self) -> str:
        return self.entry.members[0].model

    @property
    def seeds(self) -> int:
        return self.gain.size if self.gain.basis == "seeds" else 1


def comparisons(tables: Sequence[Table]) -> list[Comparison]:
    """Each training once, however many tables show it, with the most frequent average."""
    trainings: dict[frozenset[str], dict[str, Comparison]] = {}
    for table in tables:
        for entry in table.entries.values():
            model = entry.members[0].model if entry.members else PLAIN
            if entry.gain is None or isnan(entry.gain.mean) or model in NOT_AVERAGED:
                continue
            runs = frozenset(str(m.run.path) for m in entry.members if m.counts and m.run)
            models = trainings.setdefault(runs, {})
            models.setdefault(model, Comparison(table, entry, entry.gain))
    counts = Counter(model for models in trainings.values() for model in models)
    [(common, _)] = counts.most_common(1) or [("", 0)]
    chosen = [models.get(common, next(iter(models.values()))) for models in trainings.values()]
    known = [c for c in chosen if not isnan(c.gain.p)]
    corrected = dict(zip(map(id, known), holm([c.gain.p for c in known]), strict=True))
    return [c._replace(gain=c.gain._replace(holm=corrected.get(id(c), c.gain.p))) for c in chosen]


def headline(tables: Sequence[Table], measure: Measure) -> str:
    """The sentence that opens a report."""
    found = comparisons(tables)
    if not found:
        return "No comparison yet: no finished run has an average beside the plain model."
    models = {comparison.model for comparison in found}
    who = f"Averaging ({proper(models.pop())})" if len(models) == 1 else "Averaging"
    what = f"{who} improves test {measure.metric}"
    seeds = _seeds({comparison.seeds for comparison in found})
    if len(found) == 1:
        [only] = found
        changes = f"{who} changes test {measure.metric} by {_interval(only.gain, measure)}"
        return f"{changes} ({only.place}). {seeds}"
    better = sum(measure.sign * c.gain.mean > 0 for c in found)
    count = f"in {better} of {len(found)} comparisons{_sure(found, measure)}"
    return f"{what} {count}; {_middle(found, measure)}; {_worst(found, measure)}. {seeds}"


def _sure(found: Sequence[Comparison], measure: Measure) -> str:
    """In how many comparisons the gain or loss is significant after Holm's correction."""
    known = sum(not isnan(comparison.gain.half) for comparison in found)
    if not known:
        return " (too few evaluations for intervals)"
    clear = [measure.sign * c.gain.mean > 0 for c in found if c.gain.marked]
    worse = f", significantly worse in {clear.count(False)}" if False in clear else ""
    some = "" if known == len(found) else f" of {known} with an interval"
    return f" (significantly in {clear.count(True)}{some}{worse})"


def _middle(found: Sequence[Comparison], measure: Measure) -> str:
    """The median, with an interval from order statistics if there are enough comparisons."""
    gains = sorted(comparison.gain.mean for comparison in found)
    ends = median_interval(gains)
    shown = f"median {_gain(measure)} {_points(median(gains), measure)}"
    if ends is None:
        return shown
    low, high = (measure.number(end, signed=True) for end in ends)
    return f"{shown} [{low}, {high}]"


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The distribution-free 95 % interval of the median of sorted values: x_k, x_(n+1-k).

    k is the largest number for which n fair coins show at most k - 1 heads with a probability of
    at most 2.5 %.
    """
    from scipy.special import bdtr  # type: ignore[import-untyped]  # slow to import

    n = len(values)
    k = sum(float(bdtr(heads, n, 0.5)) <= RISK / 2 for heads in range(n))
    return (values[k - 1], values[n - k]) if k else None


def _worst(found: Sequence[Comparison], measure: Measure) -> str:
    worst = min(found, key=lambda comparison: measure.sign * comparison.gain.mean)
    loss = f"largest {'loss' if measure.sign > 0 else 'rise'}"
    name = loss if measure.sign * worst.gain.mean < 0 else f"smallest {_gain(measure)}"
    return f"{name} {_points(worst.gain.mean, measure)} ({worst.place})"


def _gain(measure: Measure) -> str:
    return "gain" if measure.sign > 0 else "change"


def _points(value: float, measure: Measure) -> str:
    return measure.number(value, signed=True) + (" points" if measure.is_share else "")


def _interval(gain: Interval, measure: Measure) -> str:
    if isnan(gain.half):
        return f"{_points(gain.mean, measure)}, no interval: too few evaluations"
    ends = (measure.number(gain.mean + side * gain.half, signed=True) for side in (-1, 1))
    return f"{_points(gain.mean, measure)} [{', '.join(ends)}]"


def _seeds(counts: set[int]) -> str:
    """The number of seeds behind the intervals."""
    if counts == {1}:
        return "1 seed: this says nothing about other seeds."
    few, many = min(counts), max(counts)
    return f"{many} seeds." if few == many else f"{few} to {many} seeds."
