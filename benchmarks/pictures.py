"""Bar charts of seconds per round as multiples of ours-auto's, which docs/benchmarks.md shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.peers import PEERS

OURS = "ours-auto"
MODES = {"seconds": "evaluation off", "seconds_evaluating": "evaluated after every round"}
COLOURS = {"seconds": "#0072b2", "seconds_evaluating": "#d55e00"}
LABELS = {"pfl": "pfl-research", "flower": "Flower", "fedlab": "FedLab", "fluke": "fluke"}
LABELS |= {"fedjax": "FedJAX"}  # environment -> simulator


class Ratio(NamedTuple):
    """Seconds per round over ours-auto's in the same turn: median, least, greatest."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(peers: dict[str, Any], name: str, mode: str = "seconds") -> Ratio | None:
    """None where either was not measured."""
    own, ours = (peers.get(who, {}).get(mode, []) for who in (name, OURS))
    found = [a / b for a, b in zip(own, ours, strict=False)]
    return Ratio(median(found), min(found), max(found)) if found else None


def best(peers: dict[str, Any]) -> dict[str, Ratio]:
    """Simulator -> ratio of its fastest variant, evaluation off; the fastest simulator first."""
    found: dict[str, Ratio] = {}
    for name in peers:
        label, own = LABELS.get(PEERS[name].environment or ""), ratio(peers, name)
        if label and own:
            found[label] = min(own, found.get(label, own))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def draw_workload(result: dict[str, Any], target: Path) -> None:
    """All peers of a workload, with and without evaluation."""
    from matplotlib.figure import Figure

    peers = result["peers"]
    rows = {name: [ratio(peers, name, mode) for mode in MODES] for name in peers}
    rows = {name: found for name, found in rows.items() if found[0]}
    names = sorted(rows, key=lambda name: rows[name][0])
    figure = Figure(figsize=(8, 0.9 + 0.42 * len(names)), layout="constrained")
    axes = figure.subplots()
    for k, (mode, label) in enumerate(MODES.items()):
        bars = [(i + 0.4 * (k - 0.5), rows[name][k]) for i, name in enumerate(names)]
        _bars(axes, [bar for bar in bars if bar[1]], 0.38, color=COLOURS[mode], label=label)
    axes.set_yticks(range(len(names)), names)
    _finish(axes, f"{result['title']}: seconds per round over {OURS}'s")
    axes.legend(loc="upper right", frameon=False)
    _save(figure, target)


def draw_overview(results: Sequence[dict[str, Any]], target: Path) -> None:
    """Every simulator at its best on every workload, evaluation off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, result in zip(figure.subplots(2, 2).flat, results, strict=False):
        found = {"wima": Ratio(1.0, 1.0, 1.0), **best(result["peers"])}
        for i, own in enumerate(found.values()):
            _bars(axes, [(i, own)], 0.7, color=COLOURS["seconds"] if i else "#009e73")
        axes.set_yticks(range(len(found)), found)
        _finish(axes, result["title"])
    figure.suptitle("Seconds per round as multiples of wima's (logarithmic)", fontsize="medium")
    _save(figure, target)


def _bars(axes: Any, bars: Sequence[tuple[float, Ratio]], height: float, **style: Any) -> None:
    places, ratios = [place for place, _ in bars], [found for _, found in bars]
    spread = [[r.middle - r.low for r in ratios], [r.high - r.middle for r in ratios]]
    axes.barh(places, [r.middle for r in ratios], height, xerr=spread, ecolor="#444444", **style)
    for place, found in bars:
        axes.annotate(
            f"{found.middle:.2f}" if found.middle < 10 else f"{found.middle:.0f}",
            (found.high, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )


def _finish(axes: Any, title: str) -> None:
    """Bars on a logarithmic axis that begins at a half, the fastest at the top."""
    axes.set_xscale("log")
    axes.invert_yaxis()
    low, high = axes.get_xlim()
    axes.set_xlim(min(0.5, low), 1.3 * high)
    ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if t < 1.3 * high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="#444444", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize="medium", loc="left")


def _save(figure: Any, target: Path) -> None:
    figure.savefig(target, dpi=120, metadata={"Software": "wima"})
