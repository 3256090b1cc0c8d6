"""What `wima data` does: list, fetch, verify, import and show data sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wima.core.errors import RunError, UsageError, check, unknown
from wima.data.cache import DataSet, cache, damaged, prepare, raw, ready
from wima.data.download import fetch, is_intact
from wima.data.federated import Array, Bundle
from wima.data.load import PUBLIC, label_counts, load
from wima.data.sets import SUMMARIES

LARGEST = 512  # pixels of an image's side in a contact sheet
COUNTS = 2**27  # numbers in a table of labels per client


def public(name: str) -> DataSet:
    """The public data set of that name."""
    if name not in PUBLIC:
        raise unknown("data set with files", name, PUBLIC)
    return PUBLIC[name]


def listing() -> Iterator[str]:
    """One line per data set, and where they are kept."""
    for name, summary in SUMMARIES.items():
        here = name == "digits" or ready(name).is_dir()
        yield f"{name:<14}{'ready' if here else '-':<7}{summary}"
    yield f"Kept in {cache()} (set WIMA_DATA to change it)."


def fetch_data(name: str) -> Path:
    """Download, check and read a data set."""
    dataset = public(name)
    return prepare(dataset, fetch(name, dataset.files, dataset.expects))


def import_data(name: str, path: Path) -> Path:
    """Read a local copy of the publisher's files."""
    dataset = public(name)
    for remote in dataset.files:
        fits = path.name != remote.name or not path.is_file() or is_intact(path, remote)
        check(fits, f"{path}: checksum or size differ from the published file; get it again.")
    return prepare(dataset, path)


def verify_data(name: str) -> Iterator[str]:
    """Compare what is in the cache with its checksums; raises if anything is damaged."""
    dataset = public(name)
    bad = []
    for remote in dataset.files:
        path = raw(name) / remote.name
        if path.exists():
            good = is_intact(path, remote)
            yield f"{path}: {'as published' if good else 'DAMAGED'}"
            bad += [] if good else [str(path)]
    if not ready(name).is_dir():
        raise UsageError(f"{name} is not in the cache; run `wima data fetch {name}`.")
    try:
        wrong = damaged(name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        wrong = [str(ready(name) / "meta.json")]
    yield f"{ready(name)}: {'as written' if not wrong else 'DAMAGED'}"
    if bad + wrong:
        raise RunError(f"Damaged: {', '.join(bad + wrong)}; remove them and fetch again.")


def show_data(name: str, out: Path, **split: object) -> Iterator[str]:
    """Statistics, labels per client, and a contact sheet of the first images."""
    bundle = load(name, **split)  # type: ignore[arg-type]
    train, sizes = bundle.train, bundle.train.sizes
    yield f"{name}: {train.num_examples:,} training and {len(bundle.y_test):,} test examples"
    yield f"example {train.x.shape[1:]} {train.x.dtype}, {bundle.classes} classes"
    yield (
        f"{train.num_clients:,} clients with {sizes.min()} to {sizes.max()} examples, "
        f"mean {sizes.mean():.1f}"
    )
    table = train.num_clients * bundle.classes
    check(table <= COUNTS, f"{name} has too many clients and classes for a table: {table:,} cells.")
    counts = label_counts(train, bundle.classes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
    classes = (counts > 0).sum(axis=1)
    yield (
        f"classes per client {classes.min()} to {classes.max()}, mean {classes.mean():.2f}; "
        f"mean entropy of labels {entropy.mean():.3f}"
    )
    for client in range(min(8, train.num_clients)):
        top = np.argsort(-counts[client], kind="stable")[:6]
        parts = [f"{label}: {counts[client, label]}" for label in top if counts[client, label]]
        yield f"client {client}: {', '.join(parts)}"
    if bundle.kind == "classes" and is_image(train.x.shape[1:]):
        contact_sheet(bundle, out)
        yield f"Contact sheet: {out}"


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether examples of this shape can be shown, grey or in colours."""
    return len(shape) == 3 and shape[0] in (1, 3, 4) and max(shape) <= LARGEST


def contact_sheet(bundle: Bundle, path: Path, rows: int = 8, columns: int = 16) -> None:
    """A PNG with a row of images for each of the first clients."""
    from matplotlib.figure import Figure

    check(not path.exists(), f"{path} exists already; choose another name.")
    data = bundle.train
    rows = min(rows, data.num_clients)
    channels, height, width = data.x.shape[1:]
    sheet = np.zeros((rows * height, columns * width, channels))
    for row in range(rows):
        for column, image in enumerate(data.client(row)[0][:columns]):
            top, left = row * height, column * width
            sheet[top : top + height, left : left + width] = _pixels(image)
    figure = Figure(figsize=(columns * 0.6, rows * 0.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(sheet.squeeze(), cmap="gray" if sheet.shape[2] == 1 else None, vmin=0, vmax=1)
    axes.set_axis_off()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot write the contact sheet {path}: {error}") from None


def _pixels(image: Array) -> Array:
    """An image as height x width x channels in 0 ... 1."""
    x = image.transpose(1, 2, 0)
    return x / 255 if image.dtype == np.uint8 else np.clip(x, 0, 1)
