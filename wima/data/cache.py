"""The data cache: publishers' files are read once and kept as arrays that are mapped from disk.

    <cache>/raw/NAME/         the downloaded files
    <cache>/ready/NAME/       x.npy, y.npy, x_test.npy, y_test.npy, ... and meta.json

The cache is `$WIMA_DATA`, or a folder in the user's own cache.  A folder under `ready` is complete:
it is written under another name and then renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pooch  # type: ignore[import-untyped]

from wima.core.errors import UsageError, check
from wima.data.federated import Array, check_classes, check_labels, numbered
from wima.data.mapped import open_mapped
from wima.data.transform import Transform
from wima.storage.files import digest, written
from wima.storage.reading import read_text

NEEDED, OPTIONAL = {"x", "y", "x_test", "y_test"}, {"groups", "offsets", "test_clients"}  # arrays


class Remote(NamedTuple):
    """A published file."""

    name: str
    url: str
    digest: str | None = None  # "md5:..." or "sha256:..."
    size: int | None = None


class RawData(NamedTuple):
    """The arrays of a data set as its loader reads them."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    classes: int
    clients: Array | None = None  # the client of each training example, if the data set defines it
    groups: Array | None = None  # coarse labels of the training examples
    test_clients: Array | None = None  # the client of each test example


@dataclass(frozen=True)
class DataSet:
    """A public data set: where its files are, how to read them, how models see it."""

    name: str
    terms: str
    files: tuple[Remote, ...]
    read: Callable[[Path], RawData]  # a file or folder -> arrays
    transform: Callable[..., Transform]
    kind: str = "classes"  # or "characters"
    expects: str = ""  # what `wima data import` accepts
    labels: tuple[str, ...] = ()  # the names of its classes
    clients: int | None = None  # how many the complete data set has, if it defines them


def cache() -> Path:
    """The folder of the data cache."""
    return Path(os.environ.get("WIMA_DATA") or pooch.os_cache("wima")).expanduser()


def ready(name: str) -> Path:
    """The folder of a data set's arrays."""
    return cache() / "ready" / name


def raw(name: str) -> Path:
    """The folder of a data set's downloaded files."""
    return cache() / "raw" / name


def prepare(dataset: DataSet, source: Path) -> Path:
    """Read the publisher's files and store them as arrays, all or none."""
    check(source.exists(), f"{source}: no such file or folder; expected {dataset.expects}.")
    try:
        data = dataset.read(source)
        check_raw_data(data, source)
    except UsageError:
        raise
    except Exception as error:  # damaged bytes can raise anything in readers
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise UsageError(
            f"{source}: damaged, or not {dataset.expects}: {reason}; download it again."
        ) from None
    final = ready(dataset.name)
    with written(final, folder=True, over=True, kind=UsageError) as draft:
        _write(data, draft)
    return final


def check_raw_data(data: RawData, source: Path) -> None:
    """Raise, naming the file, unless the loader returned examples with valid labels."""
    parts = (("training", data.x, data.y), ("test", data.x_test, data.y_test))
    for kind, x, y in parts:
        where = f"{source}: {kind} data"
        check(len(x) > 0, f"{where} have no examples.")
        check(len(x) == len(y), f"{where} have {len(x)} examples but {len(y)} labels.")
        try:
            check_labels(y, data.classes, "label")
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None


def _write(data: RawData, folder: Path) -> None:
    """Write the arrays sorted by client, with a checksum for each."""
    arrays = {"x": data.x, "y": data.y, "x_test": data.x_test, "y_test": data.y_test}
    if data.groups is not None:
        arrays["groups"] = data.groups
    names: list[str] | None = None
    if data.clients is not None:
        unique, client, sizes = np.unique(data.clients, return_inverse=True, return_counts=True)
        order = np.argsort(client, kind="stable")
        for key in set(arrays) & {"x", "y", "groups"}:
            arrays[key] = arrays[key][order]
        arrays["offsets"] = np.concatenate([[0], np.cumsum(sizes)])
        names = [str(name) for name in unique]
        if data.test_clients is not None:
            arrays["test_clients"] = numbered(data.test_clients, unique)
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
    digests = {key: digest(folder / f"{key}.npy") for key in arrays}
    meta = {"classes": data.classes, "names": names, "sha256": digests}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


class Ready(NamedTuple):
    """A data set's arrays, mapped from disk."""

    arrays: dict[str, Array]
    meta: dict[str, Any]


def open_ready(name: str) -> Ready:
    """Map a data set's arrays, read-only."""
    folder = ready(name)
    try:
        meta = _meta(folder)
        arrays = {key: open_mapped(folder / f"{key}.npy") for key in meta["sha256"]}
        check_classes(meta["classes"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"The data cache {folder} is damaged ({error}); remove the folder and try again."
        ) from None
    return Ready(arrays, meta)


def damaged(name: str) -> list[str]:
    """The files of a data set's cache that have changed since they were written."""
    folder = ready(name)
    found = []
    for key, expected in _meta(folder)["sha256"].items():
        path = folder / f"{key}.npy"
        if not path.is_file() or digest(path) != expected:
            found.append(str(path))
    return found


def _meta(folder: Path) -> dict[str, Any]:
    meta = json.loads(read_text(folder / "meta.json"))
    sums = dict(meta["sha256"])
    if not NEEDED <= sums.keys() <= NEEDED | OPTIONAL:
        raise ValueError(f"meta.json lists the arrays {', '.join(sums):.80}")
    return {"classes": int(meta["classes"]), "names": meta["names"], "sha256": sums}
