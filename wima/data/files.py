"""A user's own data set, from one .npz file or a folder of .npy files."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.errors import UsageError, check
from wima.core.machine import memory_available
from wima.data.federated import (
    Array,
    Bundle,
    FederatedData,
    as_names,
    check_labels,
    numbered,
    open_mapped,
)

NEEDED = ("x", "y", "client", "x_test", "y_test")
OPTIONAL = ("classes", "num_clients")  # scalars
TEST_CLIENT = "test_client"
MOST_CLASSES = 2**20  # a model has a row of weights for each


def load_npz(path: str | os.PathLike[str]) -> Bundle:
    """Arrays x, y, client (a number or name per example), x_test and y_test; optional scalars.

    The scalar `classes` is 1 + the largest label by default, `num_clients` the number of clients
    that occur.  Examples of client -1 are left out.  The optional array `test_client` holds the
    client of each test example.  Numbers are converted for torch: float32 for real x, int64 for y.
    """
    file = Path(os.path.expanduser(path))
    try:
        return _bundle(_read(file))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def load_folder(path: str | os.PathLike[str]) -> Bundle:
    """The same arrays from the files x.npy, y.npy, ... of a folder, mapped from disk.

    If examples are already sorted by client, x is not even read.
    """
    folder = Path(os.path.expanduser(path))
    try:
        check(os.path.isdir(folder), "no such folder; expected one with x.npy, y.npy, ...")
        return _bundle(_map(folder))
    except UsageError as error:
        raise UsageError(f"{folder}: {error}") from None


def _map(folder: Path) -> dict[str, Array]:
    there = [name for name in _KNOWN if (folder / f"{name}.npy").is_file()]
    missing = [name for name in NEEDED if name not in there]
    check(not missing, f"expected x.npy, y.npy, ...; missing {', '.join(missing)}.")
    arrays = {}
    for name in there:
        try:
            arrays[name] = open_mapped(folder / f"{name}.npy")
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"{name}.npy cannot be read: {error}") from None
    return arrays


def _read(file: Path) -> dict[str, Array]:
    check(os.path.isfile(file), "no such file; expected an .npz file.")
    try:
        check(
            zipfile.is_zipfile(file),
            "expected an .npz file, as written by np.savez, but this is not a zip archive.",
        )
        with np.load(file, allow_pickle=False) as archive:
            members = archive.zip.infolist()
            sizes = {m.filename.removesuffix(".npy"): m.file_size for m in members}
            missing = [name for name in NEEDED if name not in sizes]
            check(
                not missing,
                f"expected arrays {', '.join(NEEDED)}; missing {', '.join(missing)}, "
                f"got {', '.join(sizes) or 'none':.200}.",
            )
            used = [name for name in sizes if name in _KNOWN]
            _check_memory(sum(sizes[name] for name in used))
            return {name: _member(archive, name) for name in used}
    except UsageError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"expected an .npz file, but it cannot be read: {error}") from None


def _check_memory(needed: int) -> None:
    check(
        needed < memory_available(),
        f"its arrays take {needed / 1e9:.1f} GB, more than the free memory; save them as x.npy, "
        "y.npy, ... in a folder and use the folder, which is mapped from disk.",
    )


def _member(archive: Any, name: str) -> Array:
    try:
        return np.asarray(archive[name])
    except (ValueError, EOFError) as error:
        raise UsageError(
            f"{name} must be an array of plain numbers (or text, for client): {error}"
        ) from None


def _bundle(arrays: dict[str, Array]) -> Bundle:
    x, x_test = (_numbers(arrays[name], name) for name in ("x", "x_test"))
    y, y_test = (_labels(arrays[name], name) for name in ("y", "y_test"))
    _check_test(x, y, x_test, y_test)
    scalars = {name: _positive_integer(arrays[name], name) for name in OPTIONAL if name in arrays}
    classes, num_clients = scalars.get("classes"), scalars.get("num_clients")
    limit = classes or MOST_CLASSES
    check_labels(y_test, limit, "y_test")
    train = FederatedData.from_arrays(
        x, y, arrays["client"], classes=limit, num_clients=num_clients
    )
    # Counted after the split, so that the labels of left-out examples do not count.
    classes = classes or 1 + int(max(train.y.max(), y_test.max()))
    check(
        classes <= MOST_CLASSES,
        f"expected at most {MOST_CLASSES:,} classes, got {classes:,}; number the classes from 0.",
    )
    owners = _owners(arrays[TEST_CLIENT], train, y_test) if TEST_CLIENT in arrays else None
    test = x_test, y_test, classes
    return Bundle(replace(train, classes=classes), *test, test_clients=owners)


def _owners(clients: Array, train: FederatedData, y_test: Array) -> Array:
    """The client number of each test example; -1 for clients without training examples."""
    check(
        clients.shape == y_test.shape[:1],
        f"{TEST_CLIENT} must have one entry per test example, {len(y_test)}, got shape "
        f"{clients.shape}.",
    )
    if train.names is None:
        return numbered(clients, np.arange(train.num_clients))
    return numbered(as_names(clients).astype(str), np.asarray(train.names))


def _check_test(x: Array, y: Array, x_test: Array, y_test: Array) -> None:
    check(
        len(x_test) == len(y_test),
        f"x_test and y_test must each have one row per example, got shapes {x_test.shape} "
        f"and {y_test.shape}.",
    )
    check(
        x.shape[1:] == x_test.shape[1:] and y.shape[1:] == y_test.shape[1:],
        "training and test examples must have the same shape, got "
        f"x {x.shape[1:]}, x_test {x_test.shape[1:]}, y {y.shape[1:]}, y_test {y_test.shape[1:]}.",
    )


def _numbers(x: Array, name: str) -> Array:
    check(
        x.ndim > 0 and 0 not in x.shape[1:] and x.dtype.kind in "fiu",
        f"{name} must hold numbers, one row per example, got {x.dtype} of shape {x.shape}.",
    )
    return x.astype(np.float32, copy=False) if x.dtype.kind == "f" else x


def _labels(y: Array, name: str) -> Array:
    check(
        y.size > 0 and y.ndim > 0 and y.dtype.kind in "iu",
        f"{name} must hold integers, one row per example, got {y.dtype} of shape {y.shape}.",
    )
    return y.astype(np.int64, copy=False)


def _positive_integer(array: Array, name: str) -> int:
    check(
        array.size == 1 and array.dtype.kind in "iu" and int(array.item()) > 0,
        f"{name} must be a positive integer, got {array.tolist()!r:.80}.",
    )
    return int(array.item())


_KNOWN = (*NEEDED, *OPTIONAL, TEST_CLIENT)
