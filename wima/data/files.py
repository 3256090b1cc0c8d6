"""A user's own data set, from one .npz file or a folder of .npy files."""

import os
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from wima.core.errors import UsageError, check
from wima.core.machine import memory_available
from wima.data import federated
from wima.data.federated import Array, Bundle, FederatedData

NEEDED = ("x", "y", "client", "x_test", "y_test")
OPTIONAL = ("classes", "num_clients", "test_client")
MOST_CLASSES = 2**20  # a model has a row of weights for each


def load_files(path: str | os.PathLike[str]) -> Bundle:
    """Arrays x, y, client (a number or name per example), x_test and y_test; optional scalars.

    They are in an .npz file, or mapped from the files x.npy, y.npy, ... of a folder.  If the
    examples of a folder are already sorted by client, x is not even read.

    The scalar `classes` is 1 + the largest label by default, `num_clients` the number of clients
    that occur.  Examples of client -1 are left out.  The optional array `test_client` holds the
    client of each test example.  Numbers are converted for torch: float32 for real x, int64 for y.
    """
    source = Path(os.path.expanduser(path))
    try:
        return _bundle(_map(source) if os.path.isdir(source) else _read(source))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _map(folder: Path) -> dict[str, Array]:
    there = [name for name in (*NEEDED, *OPTIONAL) if (folder / f"{name}.npy").is_file()]
    missing = [name for name in NEEDED if name not in there]
    check(not missing, f"expected x.npy, y.npy, ...; missing {', '.join(missing)}.")
    return {name: federated.open_mapped(folder / f"{name}.npy") for name in there}


def _read(file: Path) -> dict[str, Array]:
    check(os.path.isfile(file), "no such file; expected an .npz file.")
    arrays, name = {}, ""
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
            used = [name for name in sizes if name in (*NEEDED, *OPTIONAL)]
            needed = sum(sizes[name] for name in used)
            check(
                needed < memory_available(),
                f"its arrays take {needed / 1e9:.1f} GB, more than the free memory; save them as "
                "x.npy, y.npy, ... in a folder and use the folder, which is mapped from disk.",
            )
            for name in used:
                arrays[name] = np.asarray(archive[name])
    except UsageError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = f"{name or 'it'} cannot be read: {error}"
        raise UsageError(f"expected an .npz file of plain arrays, but {reason}") from None
    return arrays


def _bundle(arrays: dict[str, Array]) -> Bundle:
    x, x_test = (_numbers(arrays[name], name) for name in ("x", "x_test"))
    y, y_test = (_labels(arrays[name], name) for name in ("y", "y_test"))
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
    classes, num_clients = (_scalar(arrays, name) for name in ("classes", "num_clients"))
    limit = classes or MOST_CLASSES
    federated.check_labels(y_test, limit, "y_test")
    train = FederatedData.from_arrays(
        x, y, arrays["client"], classes=limit, num_clients=num_clients
    )
    # Counted after the split, so that the labels of left-out examples do not count.
    classes = classes or 1 + int(max(train.y.max(), y_test.max()))
    check(
        classes <= MOST_CLASSES,
        f"expected at most {MOST_CLASSES:,} classes, got {classes:,}; number the classes from 0.",
    )
    train, owners = replace(train, classes=classes), None
    if "test_client" in arrays:
        owners = _owners(arrays["test_client"], train, y_test)
    return Bundle(train, x_test, y_test, classes, test_clients=owners)


def _owners(clients: Array, train: FederatedData, y_test: Array) -> Array:
    """The client number of each test example; -1 for clients without training examples."""
    check(
        clients.shape == y_test.shape[:1],
        f"test_client must have one entry per test example, {len(y_test)}, got shape "
        f"{clients.shape}.",
    )
    if train.names is None:
        return federated.numbered(clients, np.arange(train.num_clients))
    return federated.numbered(federated.as_names(clients).astype(str), np.asarray(train.names))


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


def _scalar(arrays: dict[str, Array], name: str) -> int | None:
    if name not in arrays:
        return None
    array = arrays[name]
    check(
        array.size == 1 and array.dtype.kind in "iu" and int(array.item()) > 0,
        f"{name} must be a positive integer, got {array.tolist()!r:.80}.",
    )
    return int(array.item())
