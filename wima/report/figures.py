"""Curves as PNG and SVG: a colour per row (per model if there is one row), averages dashed.

Several seeds are shown as their mean and a band from the minimum to the maximum.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wima.report.bands import band_of, draw_curve, sparse_until
from wima.report.choices import choices_figure
from wima.report.measure import Measure
from wima.report.statistics import Curve, thinned
from wima.report.strip import axes_of
from wima.report.tables import PLAIN, Entry, Table

# As distinct as twelve colours can be, also for colour-blind readers; the page uses the same.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#3399cc"]
COLOURS += ["#b2182b", "#4b3fa7", "#6b7a1e", "#8c564b", "#117777", "#666666"]
DASHES: list[Any] = ["--", ":", "-.", (0, (8, 2, 2, 2, 2, 2)), (0, (1, 3))]  # of averages
POINTS = 2000  # per curve; more than a figure can show


def draw_table(table: Table, folder: Path, measure: Measure) -> list[str]:
    """Draw a figure for each column that has curves; returns the file names."""
    names = []
    columns = [c for c in table.sheet.columns if _entries(table, c)]
    for number, column in enumerate(columns, 1):
        stem = table.slug if len(columns) == 1 else f"{table.slug}-{number}"
        regret = table.sheet.kind == "regret"
        figure = (choices_figure if regret else _figure)(table, column, measure)
        names += [save(figure, folder / f"{stem}.{ending}") for ending in ("png", "svg")]
    return names


def save(figure: Any, path: Path, dpi: int = 120) -> str:
    """Save without a date or random ids: the same runs give the same file."""
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "wima"
    date = {"Date": None} if path.suffix == ".svg" else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        figure.savefig(path, dpi=dpi, metadata=date)
    return path.name


def printable_svg(text: str) -> str:
    """Text without characters that are invalid in SVG."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _entries(table: Table, column: str) -> list[Entry]:
    """The entries of a column that have a curve, in the first twelve rows."""
    rows = table.sheet.rows[: len(COLOURS)]
    places = [table.entry(row, column, h) for row in rows for h in table.sheet.headings]
    return [entry for entry in places if entry and any(m.score for m in entry.members)]


def _figure(table: Table, column: str, measure: Measure) -> Any:
    from matplotlib.figure import Figure

    entries = _entries(table, column)
    windows = [m.window.values for entry in entries for m in entry.members if m.window]
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes, strip = axes_of(figure, windows)
    for entry in entries:
        _plot(axes, strip, table, entry, measure)
    title = printable_svg(" · ".join(text for text in (table.sheet.title, column) if text))
    hidden = len(table.sheet.rows) - len(COLOURS)
    axes.set_title(
        title + (f" (first {len(COLOURS)} rows)" if hidden > 0 else ""), parse_math=False
    )
    axes.set_ylabel(printable_svg(measure.title), parse_math=False)
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    return figure


def _plot(axes: Any, strip: Any, table: Table, entry: Entry, measure: Measure) -> None:
    """The curves of one entry, the first one labelled; their windows are drawn below."""
    rows, averages = table.sheet.rows, [h for h in table.sheet.headings if h != PLAIN]
    plain = entry.heading == PLAIN
    dash = "-" if plain else DASHES[averages.index(entry.heading) % len(DASHES)]
    tone = rows.index(entry.row) if len(rows) > 1 else table.sheet.headings.index(entry.heading)
    colour = COLOURS[tone % len(COLOURS)]
    style = {"color": colour, "linewidth": 0.8 if plain else 1.6, "ls": dash}
    label: str | None = printable_svg(f"{entry.row}, {entry.heading}")
    for curve in seed_curves(axes, entry, measure, colour):
        shown = thinned(curve, POINTS)
        draw_curve(axes, shown, sparse_until(curve.rounds), label, **style)
        label = None
    for member in entry.members:
        if member.score is not None and member.window is not None:
            strip.plot(*thinned(member.window, POINTS), color=colour, linewidth=1.0)


def seed_curves(axes: Any, entry: Entry, measure: Measure, colour: str) -> Iterator[Curve]:
    """The mean and range of the finished seeds as a line with a band; the others as lines."""
    band = band_of(entry.members)
    if band is not None:
        low, high = measure.factor * band.low, measure.factor * band.high
        axes.fill_between(band.rounds, low, high, color=colour, alpha=0.13, linewidth=0)
        yield Curve(band.rounds, measure.factor * band.mean)
    for member in entry.members:
        known = member.run is not None and member.score is not None
        if known and member.run and not (band and member.seed in band.seeds):
            curve = member.run.curves[member.model]
            yield Curve(curve.rounds, measure.factor * curve.values)


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    short = [text if len(text) <= 54 else f"{text[:24]} ... {text[-25:]}" for text in labels]
    columns = 3 if max(map(len, short), default=0) <= 32 else 2
    place = {"loc": "outside lower center", "ncols": columns, "fontsize": "small"}
    legend = figure.legend(handles, short, **place)
    for text in legend.get_texts():
        text.set_parse_math(False)
