"""The figure at the top of a page of results: curves at the paper's scale, with its numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from wima.report.figures import COLOURS, save, seed_curves
from wima.report.glance import Beside
from wima.report.measure import Measure
from wima.report.names import proper
from wima.report.statistics import thinned
from wima.report.tables import PLAIN, Entry, Member

ACROSS = 4  # panels per row
POINTS = 600  # per curve
DPI = 96  # small, because the figure is committed with documents
PAPER = "paper: "
STYLES: dict[bool, dict[str, Any]] = {  # of the plain model, and of the average
    True: {"color": COLOURS[1], "linewidth": 1.0},
    False: {"color": COLOURS[0], "linewidth": 1.8},
}


def draw_opening(found: Sequence[Beside], folder: Path, measure: Measure) -> str:
    """Draw the data set with the most methods at the paper's scale; returns the file's name."""
    shown = [one for one in found if one.table.sheet.scale == "paper"]
    counts = Counter(one.entry.column for one in shown)
    if not counts:
        return ""
    [(column, _)] = counts.most_common(1)
    own = [one for one in shown if one.entry.column == column]
    name = re.sub(r"[^a-z0-9]+", "-", f"{own[0].table.slug}-{column}".lower()).strip("-")
    return save(_figure(own, column, measure), folder / f"{name}.png", DPI)


def _figure(found: Sequence[Beside], column: str, measure: Measure) -> Any:
    from matplotlib.figure import Figure

    across = min(ACROSS, len(found))
    down = -(-len(found) // across)
    size = (8, 4) if len(found) == 1 else (1 + 2.3 * across, 1 + 1.8 * down)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    values: list[float] = []
    for panel, one in zip(panels, found, strict=False):
        values += _panel(panel, one, measure)
        panel.set_title(_title(one), fontsize="medium", parse_math=False)
    for panel in panels[len(found) :]:
        panel.set_axis_off()
    for panel in panels[max(0, len(found) - across) : len(found)]:  # no panel is below them
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("round")
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.08 * (high - low) or 1.0
    panels[0].set_ylim(low - room, high + room)
    _legend(figure, panels)
    figure.supylabel(measure.title, fontsize="medium")
    figure.suptitle(f"{column}, at the paper's scale", parse_math=False)
    return figure


def _title(one: Beside) -> str:
    count, missing = one.entry.seeds, " (paper: N/A)" if one.paper is None else ""
    seeds = f"{count} seed{'s' * (count > 1)}" if count else one.entry.basis
    return f"{proper(one.entry.row)}, {seeds}{missing}"


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """A legend with the labels of all panels, each once, curves first."""
    lines = [line for panel in panels for line in panel.get_legend_handles_labels()[0]]
    lines.sort(key=lambda line: line.get_label().startswith(PAPER))
    named = {line.get_label(): line for line in lines}
    figure.legend(named.values(), named, loc="outside lower center", ncols=4, fontsize="small")


def _panel(panel: Any, one: Beside, measure: Measure) -> list[float]:
    """Draw both models of a method; returns the values that must be visible."""
    plain = one.table.entry(one.entry.row, one.entry.column, PLAIN)
    seen: list[float] = []
    for entry in filter(None, (plain, one.entry)):
        style, name = STYLES[entry is plain], proper(entry.members[0].model)
        label: str | None = name
        for curve in seed_curves(panel, entry, measure, style["color"]):
            panel.plot(*thinned(curve, POINTS), label=label, **style)
            label = None
        for member in entry.members:
            seen += _late(member, measure)
        seen += _mark(panel, entry, PAPER + name, style["color"])
    panel.grid(alpha=0.3)
    return seen


def _late(member: Member, measure: Measure) -> list[float]:
    """The values in the last two thirds of the rounds: the first ones would flatten the rest."""
    if member.run is None or member.score is None:
        return []
    curve = member.run.curves[member.model]
    late = curve.values[curve.rounds > member.run.done / 3]
    return [measure.factor * float(value) for value in late if isfinite(value)]


def _mark(panel: Any, entry: Entry, label: str, colour: str) -> list[float]:
    """The paper's number, as a triangle at the right edge."""
    if entry.printed is None or entry.printed.value is None:
        return []
    value = entry.printed.value
    style = {"ls": "", "marker": "<", "markersize": 9, "clip_on": False, "mec": "black"}
    at = panel.get_yaxis_transform()
    panel.plot([1.0], [value], transform=at, color=colour, label=label, **style)
    return [value]
