"""The windows that a rule chose over the rounds, beside the best ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from wima.report.measure import Measure
from wima.report.regret import done_runs, fixed_windows
from wima.report.statistics import Curve, thinned
from wima.report.tables import Member, Table

ACROSS, POINTS = 4, 500
SMOOTH = 5  # evaluations that are averaged to find a best window: single ones are noisy
NEAR = 0.001  # windows this close to the best, as recorded, are shown as equally good
WIDE = 1.1  # so that a single window is visible
GOOD = "fixed windows within 0.1 of the best"


def choices_figure(table: Table, column: str, measure: Measure) -> Any:
    """A panel per row: the rule's windows as a line per seed, and good windows as a band."""
    from matplotlib.figure import Figure

    runs: dict[str, list[dict[str, Member]]] = {}
    for (row, where), models in done_runs(table):
        if where == column:
            runs.setdefault(row, []).append(models)
    down = max(1, -(-len(runs) // ACROSS))
    figure = Figure(figsize=(3 * ACROSS, 2.2 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, (row, seeds) in zip(panels, runs.items(), strict=False):
        _panel(panel, seeds, measure)
        panel.set_title(row, fontsize="medium", parse_math=False)
    for panel in panels[len(runs) :]:
        panel.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, fontsize="small")
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("models in the window", fontsize="medium")
    figure.suptitle(column, x=0.01, ha="left", parse_math=False)
    return figure


def _panel(panel: Any, seeds: list[dict[str, Member]], measure: Measure) -> None:
    rounds, least, most = _good(seeds, measure)
    panel.fill_between(rounds, least / WIDE, most * WIDE, alpha=0.25, lw=0, label=GOOD)
    label: str | None = "chosen"
    for models in seeds:
        chosen = next((m.window for m in models.values() if m.window is not None), None)
        if chosen is not None:
            curve = thinned(chosen, POINTS)
            panel.plot(curve.rounds, curve.values, color="#d55e00", lw=0.9, label=label)
            label = None
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(alpha=0.3)


def _good(seeds: list[dict[str, Member]], measure: Measure) -> tuple[Any, Any, Any]:
    """Rounds, with the shortest and longest fixed window that is about as good as the best."""
    sizes = fixed_windows(seeds[0])
    curves = [[_curve(models[heading]) for heading in sizes] for models in seeds]
    rounds, windows = curves[0][0].rounds, np.array([*sizes.values()])
    alike = [own for own in curves if all(np.array_equal(c.rounds, rounds) for c in own)]
    values = measure.sign * np.mean([[c.values for c in own] for own in alike], axis=0)
    ends = np.arange(SMOOTH, len(rounds) + 1)
    smooth = np.stack([values[:, e - SMOOTH : e].mean(axis=1) for e in ends], axis=1)
    good = smooth >= smooth.max(axis=0) - NEAR
    span = [[windows[column].min(), windows[column].max()] for column in good.T]
    least, most = np.array(span).reshape(-1, 2).T
    return rounds[SMOOTH - 1 :], least, most


def _curve(member: Member) -> Curve:
    assert member.run is not None
    return member.run.curves[member.model]
