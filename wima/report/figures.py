"""All pictures of reports: curves of tables, panels of sections, the opening, comparisons.

Plain models are thin and solid, averages thick and mostly dashed.  Several seeds are shown as their
mean with a band; rounds that were seldom evaluated as points on a thin line.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import isfinite, isnan
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from wima.core.measure import PLAIN, Measure
from wima.core.text import printable
from wima.report.notes import Picture
from wima.report.statistics import Curve, Floats, thinned
from wima.report.table import Entry, Member, Table
from wima.runs.summary import axes_of, draw_curve, sparse_until

# As distinct as twelve colours can be, also for colour-blind readers; the page uses the same.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#3399cc"]
COLOURS += ["#b2182b", "#4b3fa7", "#6b7a1e", "#8c564b", "#117777", "#666666"]
DASHES: list[Any] = ["--", ":", "-.", (0, (8, 2, 2, 2, 2, 2)), (0, (1, 3))]  # of averages
IN_PAPERS: list[Any] = ["-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5))]  # the same, small
POINTS = 2000  # per curve; more than a figure can show
ACROSS = 4  # panels per row
PANELS = 24  # of a section
LABELS = 60  # of a legend; more would leave no room for the curves
PAPER = "paper: "

# A comparison is made for a paper of two columns: its width is that of the text.
WIDTH, ROWS, EARLY, LONGEST, SHORT = 7.0, 24, 0.2, 38, 16
PUBLISHED: dict[Any, Any] = {"font.size": 8, "axes.labelsize": 8, "axes.linewidth": 0.6}
PUBLISHED |= {"pdf.fonttype": 42}  # TrueType, which publishers require
PUBLISHED |= {"xtick.labelsize": 7, "ytick.labelsize": 7}
PUBLISHED |= {"axes.spines.top": False, "axes.spines.right": False}


def look(heading: str, headings: Sequence[str], dashes: Sequence[Any] = DASHES) -> dict[str, Any]:
    """The line of a model."""
    if heading == PLAIN:
        return {"linewidth": 0.8, "ls": "-"}
    number = [name for name in headings if name != PLAIN].index(heading)
    return {"linewidth": 1.6, "ls": dashes[number % len(dashes)]}


def save(figure: Figure, folder: Path, stem: str, *endings: str, dpi: int = 120) -> list[str]:
    """Save without a date or random ids: the same runs give the same files."""
    mpl.rcParams["svg.hashsalt"] = "wima"
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    names = [f"{stem}.{ending}" for ending in endings]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        for name, ending in zip(names, endings, strict=True):
            figure.savefig(folder / name, dpi=dpi, metadata=dates.get(ending, {}))
    return names


# Curves


class Band(NamedTuple):
    """The values of several seeds, in the rounds in which all were evaluated."""

    rounds: NDArray[np.int64]
    values: Floats  # a row per seed
    seeds: list[int]

    @property
    def mean(self) -> Curve:
        return Curve(self.rounds, self.values.mean(axis=0))


def band_of(members: Sequence[Member], least: int = 2) -> Band | None:
    """The curves of the finished seeds; None if there are fewer than `least`."""
    curves = {m.seed: m.curve for m in members if m.counts and m.curve is not None}
    if len(curves) < least:
        return None
    rounds = reduce(np.intersect1d, [curve.rounds for curve in curves.values()])
    values = [curve.values[np.isin(curve.rounds, rounds)] for curve in curves.values()]
    return Band(rounds, np.stack(values), [*curves]) if len(rounds) else None


def _seed_curves(axes: Any, entry: Entry, measure: Measure, colour: str) -> Iterator[Curve]:
    """The mean and range of the finished seeds as a line with a band; the others as lines."""
    band = band_of(entry.members)
    if band is not None:
        low, high = (measure.factor * end(axis=0) for end in (band.values.min, band.values.max))
        axes.fill_between(band.rounds, low, high, color=colour, alpha=0.13, linewidth=0)
        yield Curve(band.rounds, measure.factor * band.mean.values)
    for member in entry.members:
        if member.curve is not None and not (band and member.seed in band.seeds):
            yield Curve(member.curve.rounds, measure.factor * member.curve.values)


def _panels(figure: Any, across: int, count: int) -> Any:
    """Axes for so many panels, `across` in a row; the rest are empty."""
    down = -(-count // across)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for empty in axes[count:]:
        empty.set_axis_off()
    return axes


def _legend(figure: Any, panels: Iterable[Any], last: str = "", **place: Any) -> None:
    """A legend with the labels of all panels, each once; those that start with `last` last."""
    lines = [line for panel in panels for line in panel.get_legend_handles_labels()[0]]
    lines.sort(key=lambda line: bool(last) and line.get_label().startswith(last))
    named = dict(list({line.get_label(): line for line in lines}.items())[:LABELS])
    short = [text if len(text) <= 54 else f"{text[:24]} ... {text[-25:]}" for text in named]
    columns = 3 if max(map(len, short), default=0) <= 32 else 2
    place = {"ncols": columns, "fontsize": "small", **place}
    for text in figure.legend([*named.values()], short, **place).get_texts():
        text.set_parse_math(False)


def _valid(text: str) -> str:
    """Text without characters that are invalid in SVG."""
    return "".join(char if char.isprintable() else "?" for char in text)


# Tables


def draw_table(table: Table, folder: Path) -> list[str]:
    """Draw a figure for each column that has curves; returns the file names."""
    names = []
    columns = [column for column in table.sheet.columns if _with_curves(table, column)]
    for number, column in enumerate(columns, 1):
        stem = table.slug if len(columns) == 1 else f"{table.slug}-{number}"
        names += save(table_figure(table, column), folder, stem, "png", "svg")
    return names


def _with_curves(table: Table, column: str) -> list[Entry]:
    """The entries of a column that have a curve, in the first twelve rows."""
    places = product(table.sheet.rows[: len(COLOURS)], [column], table.sheet.headings)
    entries = [table.entries[place] for place in places if place in table.entries]
    return [entry for entry in entries if any(m.score for m in entry.members)]


def table_figure(table: Table, column: str) -> Figure:
    """A colour per row, or per model if there is one row."""
    rows, headings = table.sheet.rows, table.sheet.headings
    entries = _with_curves(table, column)
    windows = [m.window.values for entry in entries for m in entry.members if m.window]
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes, strip = axes_of(figure, windows)
    for entry in entries:
        tone = rows.index(entry.row) if len(rows) > 1 else headings.index(entry.heading)
        style = {"color": COLOURS[tone % len(COLOURS)], **look(entry.heading, headings)}
        label: str | None = _valid(f"{entry.row}, {entry.heading}")
        for curve in _seed_curves(axes, entry, table.measure, style["color"]):
            draw_curve(axes, thinned(curve, POINTS), sparse_until(curve.rounds), label, **style)
            label = None  # of the first curve
        for member in entry.members:
            if member.window is not None:
                points = thinned(member.window, POINTS)
                strip.plot(*points, color=style["color"], linewidth=1.0)
    title = _valid(" · ".join(text for text in (table.sheet.title, column) if text))
    hidden = f" (first {len(COLOURS)} rows)" if len(rows) > len(COLOURS) else ""
    axes.set_title(title + hidden, parse_math=False)
    axes.set_ylabel(_valid(table.measure.title), parse_math=False)
    axes.grid(alpha=0.3)
    _legend(figure, [axes], loc="outside lower center")
    return figure


def draw_picture(picture: Picture, headings: Sequence[str], folder: Path, name: str) -> list[str]:
    """Draw the panels of a section; returns the file names."""
    shown = picture.panels[:PANELS]
    across, down = min(ACROSS, len(shown)), -(-len(shown) // ACROSS)
    figure = Figure(figsize=(max(1.6, across) * 3.2, down * 3.2 + 0.8), layout="constrained")
    panels = _panels(figure, across, len(shown))
    for axes, (title, lines) in zip(panels, shown, strict=False):
        if picture.diagonal:
            axes.plot((0, 100), (0, 100), color="0.6", linewidth=0.8)
        for heading, points in lines.items():
            style: dict[str, Any] = {"color": COLOURS[headings.index(heading) % len(COLOURS)]}
            style |= look(heading, headings) | ({"linewidth": 1.0} if heading == PLAIN else {})
            style |= {"marker": "o", "markersize": 3} if picture.diagonal else {}
            axes.plot(*zip(*points, strict=True), label=_valid(heading), **style)
        axes.set_title(fill(_valid(title), 40), fontsize="small", parse_math=False)
        axes.grid(alpha=0.3)
    _legend(figure, panels, loc="outside upper center", ncols=3)
    figure.supxlabel(_valid(picture.x), fontsize="medium", parse_math=False)
    figure.supylabel(_valid(picture.y), fontsize="medium", parse_math=False)
    return save(figure, folder, name, "png", "svg")


# The opening of a page of results: curves at the paper's scale, with the paper's numbers

# A panel: its title, and the plain model and an average, each with its name.
Pair = tuple[str, list[tuple[Entry, str]]]


def opening_figure(pairs: Sequence[Pair], title: str, measure: Measure) -> Figure:
    """A panel per method."""
    across, down = min(ACROSS, len(pairs)), -(-len(pairs) // ACROSS)
    size = (8, 4) if len(pairs) == 1 else (1 + 2.3 * across, 1 + 1.8 * down)
    figure = Figure(figsize=size, layout="constrained")
    panels = _panels(figure, across, len(pairs))
    seen: list[float] = []  # values that must be visible
    for panel, (method, entries) in zip(panels, pairs, strict=False):
        for entry, name in entries:
            plain = entry.heading == PLAIN
            style = {"color": COLOURS[int(plain)], "linewidth": 1.0 if plain else 1.8}
            label: str | None = name
            for curve in _seed_curves(panel, entry, measure, COLOURS[int(plain)]):
                panel.plot(*thinned(curve, 600), label=label, **style)
                label = None
            for member in entry.members:
                if member.curve is not None and member.run is not None:
                    late = member.curve.rounds > member.run.done / 3  # the first are far below
                    seen += [measure.factor * float(v) for v in member.curve.values[late]]
            if entry.printed is not None and entry.printed.value is not None:  # at the right edge
                mark = {"ls": "", "marker": "<", "markersize": 9, "clip_on": False, "mec": "black"}
                mark |= {"color": COLOURS[int(plain)], "label": PAPER + name}
                at = panel.get_yaxis_transform()
                panel.plot([1.0], [entry.printed.value], transform=at, **mark)
                seen.append(entry.printed.value)
        panel.grid(alpha=0.3)
        panel.set_title(method, fontsize="medium", parse_math=False)
    for panel in panels[max(0, len(pairs) - across) : len(pairs)]:  # no panel is below them
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("round")
    seen = [value for value in seen if isfinite(value)]
    low, high = min(seen, default=0.0), max(seen, default=0.0)
    room = 0.08 * (high - low) or 1.0
    panels[0].set_ylim(low - room, high + room)
    _legend(figure, panels, last=PAPER, loc="outside lower center", ncols=4)
    figure.supylabel(measure.title, fontsize="medium")
    figure.suptitle(title, parse_math=False)
    return figure


# Comparisons


def draw_comparison(table: Table, folder: Path) -> None:
    """Write compare.png and compare.pdf; the same runs give the same files."""
    with mpl.rc_context(PUBLISHED):
        save(comparison_figure(table), folder, "compare", "png", "pdf", dpi=300)


def comparison_figure(table: Table) -> Figure:
    """Mean curves with the deviation over seeds, beside the paired differences."""
    methods, models, measure = table.sheet.rows, table.sheet.headings, table.measure
    shown: list[tuple[Entry, dict[str, Any]]] = []
    for entry in table.entries.values():
        tone = methods.index(entry.row) if methods[1:] else models.index(entry.heading)
        if tone < len(COLOURS) and len(shown) < ROWS:
            style = {"color": COLOURS[tone], **look(entry.heading, models, IN_PAPERS)}
            shown.append((entry, style | {"linewidth": 0.7 if entry.heading == PLAIN else 1.5}))
    figure = Figure(figsize=(WIDTH, max(2.4, 0.9 + 0.17 * len(shown))), layout="constrained")
    curves, forest = figure.subplots(1, 2, width_ratios=(1.25, 1))
    ranges = [_mean_curve(curves, entry, style, measure) for entry, style in shown]
    seen = np.concatenate([np.empty(0), *ranges])
    seen = seen[np.isfinite(seen)]
    if len(seen):
        margin = 0.05 * (seen.max() - seen.min()) or 0.01
        curves.set_ylim(seen.min() - margin, seen.max() + margin)
    curves.set_xlabel("round")
    curves.set_ylabel(_short(measure.title), parse_math=False)
    curves.grid(alpha=0.25, linewidth=0.5)

    forest.axvline(0, color="0.4", linewidth=0.6)
    names = []  # only the model if there is one method, only the method if there is one model
    for place, (entry, style) in enumerate(shown):
        name = entry.row if len(models) == 1 else entry.heading if not methods[1:] else entry.name
        names.append(_short(name) + (" (diverged)" if entry.diverged else ""))
        gain = entry.gain
        filled = gain is not None and gain.marked
        point = {"marker": "o", "markersize": 4, "color": style["color"], "linestyle": "none"}
        point["markerfacecolor"] = style["color"] if filled else "white"
        if entry.place == table.baseline:
            forest.plot(0, place, **(point | {"marker": "|", "markersize": 7}))
        if gain is None:
            continue
        if not isnan(gain.half):
            ends = [measure.factor * (gain.mean + side * gain.half) for side in (-1, 1)]
            forest.plot(ends, [place, place], **style)
        forest.plot(measure.factor * gain.mean, place, **point)
    forest.set_ylim(len(shown) - 0.5, -0.5)
    forest.set_yticks(range(len(shown)), names)
    for text, (_, style) in zip(forest.get_yticklabels(), shown, strict=True):
        text.set_color(style["color"])
        text.set_parse_math(False)
    row, _, heading = table.baseline or ("", "", "")
    base = f"{row}/{heading}"
    base = base if len(base) <= SHORT else "the baseline"
    unit = "points" if measure.is_share else measure.metric
    forest.set_xlabel(printable(f"difference from {base}, {unit}"), parse_math=False)
    forest.tick_params(axis="y", length=0)
    forest.grid(axis="x", alpha=0.25, linewidth=0.5)
    forest.spines["left"].set_visible(False)
    hidden = len(table.entries) - len(shown)
    if hidden:
        forest.set_title(f"{hidden} more rows are in the table", size=7, loc="right")
    return figure


def _mean_curve(axes: Any, entry: Entry, style: dict[str, Any], measure: Measure) -> np.ndarray:
    """Draw the mean over seeds and the deviation; returns the values that must be visible."""
    band = None if entry.diverged else band_of(entry.members, least=1)
    if band is None:
        return np.empty(0)
    several = len(band.seeds) > 1
    spread = band.values.std(axis=0, ddof=1) if several else np.zeros(len(band.rounds))
    thin, factor = thinned(band.mean, 1000), measure.factor
    kept = np.searchsorted(band.rounds, thin.rounds)
    points = {"marker": "o", "markersize": 1.8} if len(band.rounds) <= 60 else {}
    axes.plot(thin.rounds, factor * thin.values, **style, **points)
    ends = [thin.values + side * np.nan_to_num(spread[kept]) for side in (-1, 1)]
    low, high = factor * np.stack(ends)
    axes.fill_between(thin.rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
    late = thin.rounds > EARLY * band.rounds[-1:]  # the first do not stretch the axis
    return np.concatenate([low[late], high[late]])


def _short(text: str) -> str:
    """Text that is short enough, and valid in a PDF."""
    text = printable(text).replace("\n", " ").replace("\t", " ")
    half = LONGEST // 2 - 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"
