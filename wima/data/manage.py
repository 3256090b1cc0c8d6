"""The work of `wima data`: list, fetch, verify, import and show data sets."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.errors import RunError, UsageError, check
from wima.core.text import printable
from wima.data.cache import cache, is_intact, open_ready, prepare, raw, ready
from wima.data.federated import Array, FederatedData, read_meta
from wima.data.load import PUBLIC, load, public
from wima.data.sets import SUMMARIES
from wima.storage.files import check_picture, save_picture

LINES, TOP = 8, 6  # clients in a table, and labels of each
CLIENTS, LABELS, NAMES = 100, 100, 20  # of the picture: columns; rows and columns with captions
COUNTS = 2**27  # numbers in a table of labels per client


def listing() -> Iterator[str]:
    """One line per data set, and the folder of the cache."""
    for name, summary in SUMMARIES.items():
        state, note = _state(name)
        yield f"{name:<14}{state:<9}{summary}{note}"
    yield f"Stored in {cache()} (set WIMA_DATA to change this)."


def _state(name: str) -> tuple[str, str]:
    """Whether a data set is in the cache, with a note if some of its clients are missing."""
    if name not in PUBLIC or not ready(name).is_dir():
        return ("ready" if name == "digits" else "-"), ""
    try:
        here = len(open_ready(name)[1]["names"] or ())
    except UsageError:
        return "damaged", ""
    part = here < (PUBLIC[name].clients or 0)
    return ("part", f"; here: {here:,} of them") if part else ("ready", "")


def import_data(name: str, path: Path) -> Path:
    """Read a local copy of the publisher's files."""
    dataset = public(name)
    for remote in dataset.files:
        fits = path.name != remote.name or not path.is_file() or is_intact(path, remote.digest)
        check(fits, f"{path}: its checksum is not the published one; download it again.")
    return prepare(dataset, path)


def verify_data(name: str) -> Iterator[str]:
    """Compare the cached files with their checksums; raises if any is damaged."""
    dataset = public(name)
    bad = []
    for remote in dataset.files:
        path = raw(name) / remote.name
        if path.exists():
            good = is_intact(path, remote.digest)
            yield f"{path}: {'as published' if good else 'DAMAGED'}"
            bad += [] if good else [str(path)]
    folder = ready(name)
    check(folder.is_dir(), f"{name} is not in the cache; run `wima data fetch {name}`.")
    try:
        digests = {folder / f"{k}.npy": d for k, d in read_meta(folder, "sha256")["sha256"].items()}
        wrong = [str(path) for path, d in digests.items() if not is_intact(path, f"sha256:{d}")]
    except UsageError:
        wrong = [str(folder / "meta.json")]
    yield f"{folder}: {'as written' if not wrong else 'DAMAGED'}"
    if bad + wrong:
        raise RunError(f"Damaged: {', '.join(bad + wrong)}; remove them and fetch again.")


def show_data(name: str, out: Path, force: bool = False, **split: object) -> Iterator[str]:
    """Statistics, a table of the labels of some clients, and a picture of those of many."""
    check_picture(out, force)
    bundle = load(name, **split)  # type: ignore[arg-type]
    train, sizes = bundle.train, bundle.train.sizes
    shape = "x".join(map(str, train.x.shape[1:])) or "one number"
    yield (
        f"{name}: {train.num_examples:,} training and {len(bundle.y_test):,} test examples, "
        f"each {shape} ({train.x.dtype}); {bundle.classes} classes"
    )
    yield (
        f"{train.num_clients:,} clients with {sizes.min()} to {sizes.max()} examples, "
        f"mean {sizes.mean():.1f}"
    )
    table = train.num_clients * bundle.classes
    check(table <= COUNTS, f"{name} has too many clients and classes for a table: {table:,} cells.")
    counts = label_counts(train, bundle.classes)
    named = PUBLIC[name].labels if name in PUBLIC else ()
    labels = named or [str(label) for label in range(bundle.classes)]
    yield _spread(counts)
    if bundle.kind == "characters":  # many labels, in no meaningful order
        frequent = np.argsort(-counts.sum(axis=0), kind="stable")[: np.any(counts, axis=0).sum()]
        counts, labels = counts[:, frequent], [labels[label] for label in frequent]
    yield from _table(train, counts, labels)
    chosen = [f"{key} = {value}" for key, value in split.items() if value is not None]
    title = ", ".join([Path(name).name, *chosen])
    save_picture(draw_labels(train, counts, labels, title), out, force)
    yield f"Picture: {out}"


def _spread(counts: Array) -> str:
    """How many labels clients have, and how evenly they are distributed."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
    classes = (counts > 0).sum(axis=1)
    return (
        f"classes per client {classes.min()} to {classes.max()}, mean {classes.mean():.2f}; "
        f"entropy of a client's labels, mean {entropy.mean():.3f} "
        f"({np.log(counts.shape[1]):.3f} if all are equally frequent)"
    )


def _table(train: FederatedData, counts: Array, labels: Sequence[str]) -> Iterator[str]:
    """Lines for a sample of clients, with their most frequent labels."""
    yield f"{'client':>8}  {'examples':>8}  {'classes':>7}  most frequent: label × count"
    for i in sample(len(counts), LINES):
        top = np.argsort(-counts[i], kind="stable")[:TOP]
        parts = [f"{labels[label]} × {counts[i, label]}" for label in top if counts[i, label]]
        name = "" if train.names is None else f"  ({train.names[i]!s:.60})"
        classes = (counts[i] > 0).sum()
        yield f"{i:>8}  {train.sizes[i]:>8,}  {classes:>7}  {', '.join(parts)}{name}"
    if len(counts) > LINES:
        yield f"... {LINES} of {len(counts):,} clients, evenly spaced"


def label_counts(data: FederatedData, classes: int) -> Array:
    """The number of examples of each class (or of each character) that each client has."""
    per_row = data.y.size // len(data.y)
    client = np.repeat(np.arange(data.num_clients), data.sizes * per_row)
    flat = client * classes + np.asarray(data.y).reshape(-1)
    counts = np.bincount(flat, minlength=data.num_clients * classes)
    return counts.reshape(data.num_clients, classes)


def sample(clients: int, most: int) -> Array:
    """At most `most` client numbers, evenly spaced from the first to the last."""
    return np.linspace(0, clients - 1, min(clients, most)).round().astype(int)


def draw_labels(data: FederatedData, counts: Array, labels: Sequence[str], title: str) -> Any:
    """A figure: the examples per client as bars, and below them the share of each label.

    counts: one row per client, one column per label.
    """
    from matplotlib.figure import Figure

    shown = sample(len(counts), CLIENTS)
    rows = max(min(len(labels), LABELS), 12)
    figure = Figure(figsize=(11, 3 + 0.16 * rows), layout="constrained")
    grid = {"height_ratios": (1, 0.14 * rows), "hspace": 0.02}
    bars, heat = figure.subplots(2, sharex=True, gridspec_kw=grid)
    some = "" if len(shown) == len(counts) else f"{len(shown)} of "
    whole = f"{title}: labels of {some}{len(counts):,} clients"
    figure.suptitle(printable(whole), parse_math=False)
    bars.bar(range(len(shown)), data.sizes[shown], width=0.9, color="tab:gray")
    bars.set_ylabel("examples")

    shares = np.ma.masked_equal(counts[shown].T / counts[shown].sum(axis=1), 0)
    colours = heat.imshow(shares, cmap="YlGnBu", aspect="auto", interpolation="nearest", vmin=0)
    label = "share of the client's labels; white: none"
    figure.colorbar(colours, ax=heat, label=label, pad=0.01, aspect=max(rows, 20))
    heat.set(xlabel="client", ylabel="label")
    if len(labels) <= LABELS:
        heat.set_yticks(range(len(labels)), map(printable, labels), fontsize=8, parse_math=False)
    if data.names is not None and len(shown) <= NAMES:
        names = [f"{printable(str(data.names[i])):.24}" for i in shown]
        heat.set_xticks(range(len(shown)), names, rotation=30, ha="right", parse_math=False)
    else:
        ticks = range(0, len(shown), -(-len(shown) // NAMES))
        heat.set_xticks(ticks, [str(shown[tick]) for tick in ticks])
    return figure
