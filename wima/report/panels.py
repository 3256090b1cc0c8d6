"""The figures of sections as PNG and SVG: a panel per place, a line per model."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

from wima.report.below import below
from wima.report.figures import COLOURS, DASHES, printable_svg, save
from wima.report.section import Panel, Picture
from wima.report.tables import PLAIN, Table

ACROSS, MOST = 4, 24  # panels
SIZE, WIDE = 3.2, 40  # width of a panel in inches, and of its title in characters


def draw_sections(table: Table, folder: Path) -> list[str]:
    """Draw a figure for each section that has one; returns the file names."""
    names = []
    for section in below(table):
        if section.picture is not None and section.picture.panels:
            figure = _figure(section.picture, table.sheet.headings)
            files = [f"{table.slug}-{section.name}.{ending}" for ending in ("png", "svg")]
            names += [save(figure, folder / name) for name in files]
    return names


def _figure(picture: Picture, headings: list[str]) -> Any:
    from matplotlib.figure import Figure

    panels = picture.panels[:MOST]
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    size = (max(1.6, across) * SIZE, down * SIZE + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel, picture.diagonal, headings)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    found = [
        pair for axes in places for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    shown = {label: line for line, label in found}
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": 3, "fontsize": "small"}
    for text in figure.legend(shown.values(), shown, **place).get_texts():
        text.set_parse_math(False)
    figure.supxlabel(printable_svg(picture.x), fontsize="medium", parse_math=False)
    figure.supylabel(printable_svg(picture.y), fontsize="medium", parse_math=False)
    return figure


def _draw(axes: Any, panel: Panel, diagonal: bool, headings: list[str]) -> None:
    """Plain is solid, averages are dashed, as in the figures of curves."""
    if diagonal:
        axes.plot((0, 100), (0, 100), color="0.6", linewidth=0.8)
    averages = [heading for heading in headings if heading != PLAIN]
    for heading, points in panel.lines.items():
        plain = heading == PLAIN
        dash = "-" if plain else DASHES[averages.index(heading) % len(DASHES)]
        look = {"color": COLOURS[headings.index(heading) % len(COLOURS)], "linestyle": dash}
        look |= {"marker": "o", "markersize": 3} if diagonal else {}
        label = printable_svg(heading)
        axes.plot(*zip(*points, strict=True), linewidth=1.0 if plain else 1.6, label=label, **look)
    axes.set_title(fill(printable_svg(panel.title), WIDE), fontsize="small", parse_math=False)
    axes.grid(alpha=0.3)
