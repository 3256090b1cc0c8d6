"""The picture of one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wima.core.text import printable
from wima.report.bands import draw_curve, sparse_until
from wima.report.statistics import Curve
from wima.report.strip import axes_of
from wima.runs.folder import Run


def draw_curves(run: Run, path: Path, metric: str = "accuracy") -> None:
    """A PNG of the metric over the rounds, plain solid, averages dashed; and of their windows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes, strip = axes_of(figure, (counts for _, counts in run.windows.values()))
    for model in run.models:
        rounds, values = run.curve(model, metric)
        plain = model == "plain"
        curve = Curve(np.array(rounds), np.array(values))
        style = {"ls": "-" if plain else "--", "linewidth": 0.9 if plain else 2.0}
        until = sparse_until(curve.rounds)
        line = draw_curve(axes, curve, until, _no_formula(model), **style)
        if model in run.windows:
            strip.plot(*run.windows[model], color=line.get_color(), linewidth=1.0)
    values = run.curve("plain", metric)[1]
    if metric == "accuracy" and values:
        axes.set_ylim(max(0.0, float(np.nanpercentile(values, 10)) - 0.05), 1.0)
    settings = run.settings
    title = f"{settings.algorithm.name} on {Path(settings.data.name).stem}"
    clients = run.environment.get("clients", "all")
    title = f"{title}, {settings.clients_per_round} of {clients} clients per round"
    axes.set_title(_no_formula(title))
    axes.set_ylabel(_no_formula(f"test {metric}"))
    axes.grid(alpha=0.3)
    if run.models:
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def _no_formula(text: str) -> str:
    """Text that matplotlib shows as it is."""
    return printable(text).replace("$", r"\$")
