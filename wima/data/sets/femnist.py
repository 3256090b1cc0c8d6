"""FEMNIST: handwritten characters by their writers, 62 classes.

Derived from NIST Special Database 19.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import DataSet, RawData
from wima.data.federated import Array
from wima.data.sets import fedjax
from wima.data.transform import Ink

FILES = ("federated_emnist_train.sqlite", "federated_emnist_test.sqlite")


def read_femnist(source: Path) -> RawData:
    """Read FedJAX's two SQLite files, or LEAF's folders train/ and test/ of JSON files."""
    fedjax.check_folder(source, FILES)
    parts = [source / name for name in FILES]
    if not any(part.exists() for part in parts):
        parts = [source / "train", source / "test"]
        check(
            all(part.is_dir() for part in parts),
            f"{source}: neither {FILES[0]} nor LEAF's folders train and test are in this folder.",
        )
    for part in parts:
        check(part.exists(), f"{source}: {part.name} is missing from this folder.")
    (x, y, writers), (x_test, y_test, tested) = map(_read, parts)
    return RawData(x, y, x_test, y_test, 62, clients=writers, test_clients=tested)


def _read(path: Path) -> tuple[Array, Array, Array]:
    """All images as (n, 1, 28, 28), labels, and the writer of each."""
    parts = []
    writers = fedjax.clients(path, "pixels", "label") if path.is_file() else _leaf(path)
    for name, x, y in writers:
        check(
            np.shape(x)[1:] == (28, 28) and len(x) == len(y) > 0,
            f"{path}: writer {name} has images of shape {np.shape(x)} and {len(y)} labels.",
        )
        scaled = x * np.float32(255)
        pixels = np.rint(scaled)  # as bytes they take a quarter of the memory
        exact = np.abs(scaled - pixels).max() < 1e-3 and pixels.min() >= 0 and pixels.max() <= 255
        check(exact, f"{path}: writer {name} has pixels that are not 0/255, 1/255, ... 255/255.")
        parts.append((name, pixels.astype(np.uint8), y))
    x, y, writer = fedjax.joined(path, parts, "writers")
    return x[:, None], y, writer


def _leaf(folder: Path) -> Iterator[tuple[Any, ...]]:
    paths = sorted(folder.glob("*.json"))
    check(bool(paths), f"{folder}: no .json file in this folder.")
    for path in paths:
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for user in content["users"]:
                examples = content["user_data"][user]
                x = np.asarray(examples["x"], np.float32).reshape(-1, 28, 28)
                yield user, x, np.asarray(examples["y"])
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path}: not LEAF's JSON, or damaged: {error!r}") from None


FEMNIST = DataSet(
    "femnist",
    fedjax.remotes("emnist", FILES),
    read_femnist,
    Ink,
    expects="a folder with FedJAX's federated_emnist_{train,test}.sqlite, or LEAF's train/, test/",
    labels=tuple(digits + ascii_uppercase + ascii_lowercase),
    clients=3_400,
)
