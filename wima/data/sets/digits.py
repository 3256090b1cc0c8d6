"""Handwritten digits: 1,797 images of 8 x 8 pixels that come with this package.

They are the test set of Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI Machine
Learning Repository, 1998, CC BY 4.0), in the order of scikit-learn's `load_digits`.
"""

from pathlib import Path

import numpy as np

from wima.data.federated import Array, Bundle, FederatedData
from wima.data.split import assign

FILE = Path(__file__).with_suffix(".npz")
CLASSES, CLIENTS = 10, 100
BRIGHTEST = 16  # pixels count ink dots in 4 x 4 blocks


def load_digits() -> tuple[Array, Array]:
    """All images as rows of 64 numbers from 0 to 16, and their labels."""
    with np.load(FILE) as stored:
        images, labels = stored["images"], stored["labels"]
    return images.reshape(-1, 64).astype(np.float64), labels.astype(np.int64)


def load_digits_split() -> tuple[Array, Array, Array, Array]:
    """x_train, y_train, x_test, y_test: a fifth of every class is held out, always the same."""
    images, y = load_digits()
    x = (images / BRIGHTEST).astype(np.float32).reshape(-1, 1, 8, 8)
    with np.load(FILE) as stored:
        train, test = stored["train"], stored["test"]
    return x[train], y[train], x[test], y[test]


def digits(
    num_clients: int = CLIENTS,
    alpha: float | str | None = 0.0,
    seed: int = 0,
    file: str | None = None,
) -> Bundle:
    """The digits, split among clients by alpha (None or "iid": uniformly) or by a file."""
    x, y, x_test, y_test = load_digits_split()
    clients = assign(y, num_clients, "iid" if alpha is None else alpha, seed, file)
    train = FederatedData.from_arrays(x, y, clients, classes=CLASSES)
    return Bundle(train, x_test, y_test, CLASSES)
