"""A picture of the clients' labels, as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wima.core.text import printable
from wima.data.federated import Array
from wima.storage.files import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS, LABELS, NAMES = 100, 100, 20  # columns; rows with captions; columns with names


def sample(clients: int, most: int) -> Array:
    """At most `most` client numbers, evenly spaced from the first to the last."""
    return np.linspace(0, clients - 1, min(clients, most)).round().astype(int)


def draw_labels(
    counts: Array,
    sizes: Array,
    labels: Sequence[str],
    clients: Array | Sequence[str] | None,
    title: str,
    path: Path,
    force: bool = False,
) -> None:
    """A PNG: the examples per client as bars, and below them the share of each label.

    counts: one row per client, one column per label.  clients: their names, if they have any.
    """
    from matplotlib.figure import Figure

    shown = sample(len(counts), CLIENTS)
    rows = min(counts.shape[1], LABELS)
    figure = Figure(figsize=(11, 3 + 0.16 * max(rows, 12)), layout="constrained")
    grid = {"height_ratios": (1, 0.14 * max(rows, 12)), "hspace": 0.02}
    bars, heat = figure.subplots(2, sharex=True, gridspec_kw=grid)
    some = "" if len(shown) == len(counts) else f"{len(shown)} of "
    whole = f"{title}: labels of {some}{len(counts):,} clients"
    figure.suptitle(printable(whole), parse_math=False)
    bars.bar(range(len(shown)), sizes[shown], width=0.9, color="tab:gray")
    bars.set_ylabel("examples")
    _heat(heat, counts[shown])
    _captions(heat, shown, labels, clients)
    save_picture(figure, path, force)


def _heat(heat: Axes, counts: Array) -> None:
    """One column per client, one row per label; colours show shares."""
    shares = np.ma.masked_equal(counts.T / counts.sum(axis=1), 0)
    colours = heat.imshow(shares, cmap="YlGnBu", aspect="auto", interpolation="nearest", vmin=0)
    label, aspect = "share of the client's labels; white: none", max(min(len(shares), LABELS), 20)
    heat.figure.colorbar(colours, ax=heat, label=label, pad=0.01, aspect=aspect)
    heat.set_ylabel("label")
    heat.set_xlabel("client")


def _captions(
    heat: Axes, shown: Array, labels: Sequence[str], clients: Array | Sequence[str] | None
) -> None:
    if len(labels) <= LABELS:
        heat.set_yticks(range(len(labels)), map(printable, labels), fontsize=8, parse_math=False)
    if clients is not None and len(shown) <= NAMES:
        names = [f"{printable(str(clients[i])):.24}" for i in shown]
        heat.set_xticks(range(len(shown)), names, rotation=30, ha="right", parse_math=False)
        return
    ticks = range(0, len(shown), -(-len(shown) // NAMES))
    heat.set_xticks(ticks, [str(shown[tick]) for tick in ticks])
