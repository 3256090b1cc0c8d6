"""Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, part of the library."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from zipfile import BadZipFile

import numpy as np

from wima.core.errors import RunError
from wima.data.bundle import Bundle
from wima.data.cache import cache
from wima.data.federated import Array, FederatedData
from wima.data.splits.assignment import read_assignment
from wima.data.splits.labels import split
from wima.storage.files import written
from wima.storage.reading import open_archive, read_array

CLASSES = 10
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
BRIGHTEST = 16  # pixels count ink dots in 4 x 4 blocks


def load_digits_split() -> tuple[Array, Array, Array, Array]:
    """x_train, y_train, x_test, y_test: a fifth of every class is held out, always the same.

    Kept in the cache, because importing scikit-learn takes a second.
    """
    file = cache() / "ready" / f"digits-{version('scikit-learn')}.npz"
    try:
        with open_archive(file) as kept:
            x_train, y_train, x_test, y_test = (read_array(kept, name) for name in ARRAYS)
            return x_train, y_train, x_test, y_test
    except (OSError, ValueError, BadZipFile):
        arrays = _from_sklearn()
    # If the cache is not writable, this only costs time.
    with suppress(RunError), written(file) as draft, draft.open("wb") as opened:
        np.savez(opened, **dict(zip(ARRAYS, arrays, strict=True)))  # type: ignore[arg-type]
    return arrays


def _from_sklearn() -> tuple[Array, Array, Array, Array]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    images, labels = load_digits(return_X_y=True)
    x = (images / BRIGHTEST).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.2, stratify=y, random_state=0
    )
    return x_train, y_train, x_test, y_test


def digits(
    num_clients: int = 100, alpha: float | None = 0.0, seed: int = 0, file: str | None = None
) -> Bundle:
    """scikit-learn's 1,797 digits of 8x8 pixels, 20 % held out, split among clients by alpha."""
    x, y, x_test, y_test = load_digits_split()
    clients = read_assignment(file, y) if file else split(y, num_clients, alpha, seed)
    train = FederatedData.from_arrays(x, y, clients, classes=CLASSES)
    return Bundle(train, x_test, y_test, CLASSES)
