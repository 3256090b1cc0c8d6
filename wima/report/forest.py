"""The gains of a report as a forest plot: a line with an interval for each comparison."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isnan

from wima.report.grid import paper_gain
from wima.report.headline import Comparison
from wima.report.measure import Measure
from wima.report.names import proper

MOST = 60  # lines; data.csv has all
MIDDLE, HEIGHT = 11, 22  # of a line, in pixels
PAPER = "Circles: the paper's gain; grey where our settings differ from the paper's."


def forest(found: Sequence[Comparison], measure: Measure) -> str:
    """A section of the page; each column of the tables has its own axis."""
    if not found:
        return ""
    shown = found[:MOST]
    groups: dict[str, list[Comparison]] = {}
    for comparison in shown:
        groups.setdefault(comparison.entry.column, []).append(comparison)
    bodies = "\n".join(_group(name, own, measure) for name, own in groups.items())
    unit = "in points" if measure.is_share else f"of test {measure.metric}"
    told = [f"Average minus plain, {unit}, with 95 % intervals; an axis per block."]
    told += [PAPER] if any(_paper(c) is not None for c in shown) else []
    told += [f"The first {MOST} of {len(found)}; all are in data.csv."] * (len(found) > MOST)
    table = f'<div class="scroll"><table class="forest">{bodies}</table></div>'
    note = f'<p class="rest">{escape(" ".join(told))}</p>'
    return f'<section id="gains"><h2>Gains over plain</h2>\n{table}\n{note}</section>'


def _group(name: str, found: Sequence[Comparison], measure: Measure) -> str:
    ends = [0.0]
    for comparison in found:
        gain, paper = comparison.gain, _paper(comparison)
        half = 0.0 if isnan(gain.half) else gain.half
        ends += [measure.factor * (gain.mean + side * half) for side in (-1, 1)]
        ends += [] if paper is None else [paper]
    room = 0.06 * (max(ends) - min(ends)) or 1.0
    axis = Axis(min(ends) - room, max(ends) + room)
    name = f'<th scope="rowgroup"><span>{escape(proper(name))}</span></th>'
    head = f'{name}<td class="track">{axis.labels()}</td><td></td>'
    lines = [_line(comparison, axis, measure) for comparison in found]
    return f'<tbody><tr class="axis">{head}</tr>\n' + "\n".join(lines) + "</tbody>"


def _line(comparison: Comparison, axis: Axis, measure: Measure) -> str:
    gain, paper = comparison.gain, _paper(comparison)
    mean, half = measure.factor * gain.mean, measure.factor * gain.half
    zero = f'<line class="zero" x1="{axis.at(0)}" x2="{axis.at(0)}" y1="0" y2="{HEIGHT}"/>'
    unclear = isnan(half) or abs(mean) <= half
    kind = "unclear" if unclear else "better" if measure.sign * mean > 0 else "worse"
    marks = ""
    if not isnan(half):
        level = f'y1="{MIDDLE}" y2="{MIDDLE}"'
        marks = f'<line x1="{axis.at(mean - half)}" x2="{axis.at(mean + half)}" {level}/>'
    marks += f'<circle cx="{axis.at(mean)}" cy="{MIDDLE}" r="4"/>'
    if paper is not None:
        same = " same" if comparison.table.sheet.scale == "paper" else ""
        marks += f'<circle class="paper{same}" cx="{axis.at(paper)}" cy="{MIDDLE}" r="4"/>'
    track = f'<svg class="{kind}" height="{HEIGHT}" aria-hidden="true">{zero}{marks}</svg>'
    first, *rest = measure.interval(gain).split(" ", 1)
    ends = "".join(f'<span class="ends"> {escape(text)}</span>' for text in rest)
    name = f'<th scope="row"><span>{escape(proper(comparison.entry.row))}</span></th>'
    return f'<tr>{name}<td class="track">{track}</td><td>{escape(first)}{ends}</td></tr>'


class Axis:
    """Maps gains to positions on a track, in percent, so that it fits every screen."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def at(self, value: float) -> str:
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"

    def labels(self) -> str:
        from matplotlib.ticker import MaxNLocator

        ticks = MaxNLocator(3).tick_values(self.low, self.high)
        inside = [tick for tick in ticks if self.low <= tick <= self.high]
        texts = (
            f'<text x="{self.at(tick)}" y="15" text-anchor="middle">{_number(tick)}</text>'
            for tick in inside
        )
        return f'<svg height="{HEIGHT}" aria-hidden="true">{"".join(texts)}</svg>'


def _number(tick: float) -> str:
    return f"{round(tick, 9):+g}".replace("-", "\N{MINUS SIGN}") if abs(tick) > 1e-9 else "0"


def _paper(comparison: Comparison) -> float | None:
    return paper_gain(comparison.table, comparison.entry)
