"""Load a data set by name, split among clients and ready for training."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.errors import check, unknown
from wima.data.bundle import Bundle
from wima.data.cache import DataSet, Ready, open_ready, prepare, raw, ready
from wima.data.download import fetch
from wima.data.federated import Array, FederatedData
from wima.data.files import load_folder, load_npz
from wima.data.sets import check_name, is_folder
from wima.data.sets.cifar import CIFAR10, CIFAR100
from wima.data.sets.digits import digits
from wima.data.sets.femnist import FEMNIST
from wima.data.sets.landmarks import fetch_split, load_landmarks
from wima.data.sets.shakespeare import SHAKESPEARE
from wima.data.sets.tff import PAM
from wima.data.splits.assignment import read_assignment
from wima.data.splits.labels import split as split_labels
from wima.data.splits.pachinko import pachinko

PUBLIC = {d.name: d for d in (CIFAR10, CIFAR100, PAM, FEMNIST, SHAKESPEARE)}
OWN_CLIENTS = ("femnist", "shakespeare", "landmarks", "cifar100-pam")
CLIENTS, PAM_CLIENTS = 100, 500


def load(
    name: str,
    *,
    clients: int | None = None,
    alpha: float | str | None = None,
    seed: int = 0,
    split: str | None = None,
    **options: Any,
) -> Bundle:
    """A data set by name, or from an .npz file or a folder of .npy files, split among clients.

    alpha: Dirichlet concentration; 0: one class per client; "iid"; None: the data set's own
    clients if it defines them, otherwise one class per client.
    split: a file with the client of each example.
    options: options of the data set, for example augment="batch" for CIFAR.
    """
    check_name(name)
    check(alpha is None or split is None, "Give alpha or split, not both: either sets the clients.")
    folder = is_folder(name)
    own = folder or name.endswith(".npz") or name in OWN_CLIENTS
    check(
        not own or (alpha is None and split is None),
        f"{name} defines its own clients; alpha and split cannot be set. If a preset sets alpha, "
        "add alpha=none.",
    )
    check(
        not own or clients is None or name == "cifar100-pam",
        f"{name} defines its own clients; their number cannot be set.",
    )
    if folder or name.endswith(".npz"):
        return load_folder(name) if folder else load_npz(name)
    if name == "landmarks":
        return load_landmarks(*_landmark_folders(options), **_known(load_landmarks, name, options))
    if name == "digits":
        _known(digits, name, options)
        return digits(CLIENTS if clients is None else clients, _alpha(alpha), seed, split)
    return _public(PUBLIC[name], clients, alpha, seed, split, options)


def _public(
    dataset: DataSet,
    clients: int | None,
    alpha: float | str | None,
    seed: int,
    split: str | None,
    options: dict[str, Any],
) -> Bundle:
    transform = dataset.transform(**_known(dataset.transform, dataset.name, options))
    pachinko_split = dataset is PAM and not _there(PAM)
    arrays, meta = opened(CIFAR100 if pachinko_split else dataset)
    x, y, classes = arrays["x"], arrays["y"], int(meta["classes"])
    if "offsets" in arrays:
        check(clients is None, f"{dataset.name} has fixed clients; their number cannot be set.")
        train = FederatedData(x, y, arrays["offsets"], meta["names"], classes)
    else:
        usual = PAM_CLIENTS if pachinko_split else CLIENTS
        count = usual if clients is None else clients
        if pachinko_split:
            owner = pachinko(y, arrays["groups"], count, seed)
        else:
            owner = assign(y, count, alpha, seed, split)
        train = FederatedData.from_arrays(x, y, owner, classes=classes)
    test = arrays["x_test"], arrays["y_test"], classes, transform, dataset.kind
    return Bundle(train, *test, arrays.get("test_clients"))


def assign(
    y: Array, clients: int, alpha: float | str | None, seed: int, split: str | None
) -> Array:
    """The client of each example, by a rule or from a file."""
    if split is not None:
        return read_assignment(split, y)
    return split_labels(y, clients, _alpha(alpha), seed)


def _alpha(alpha: float | str | None) -> float | None:
    """alpha as `split` expects it: None means iid."""
    if isinstance(alpha, str):
        check(alpha == "iid", f"alpha must be a number or 'iid', got {alpha!r}.")
        return None
    return 0.0 if alpha is None else alpha


def opened(dataset: DataSet) -> Ready:
    """A data set's arrays: from the cache, from downloaded files, or from the network."""
    if not ready(dataset.name).is_dir():
        prepare(dataset, fetch(dataset.name, dataset.files, dataset.expects))
    return open_ready(dataset.name)


def _there(dataset: DataSet) -> bool:
    """Whether a data set can be opened without network access."""
    folder = raw(dataset.name)
    return ready(dataset.name).is_dir() or all((folder / f.name).exists() for f in dataset.files)


def _landmark_folders(options: dict[str, Any]) -> tuple[Path, Path]:
    """The paths of the split and the images: from the options, or in the cache."""
    split, images = options.pop("split_file", None), options.pop("images", None)
    check(
        all(isinstance(given, str | None) for given in (split, images)),
        f"images and split_file must be paths, got {images!r} and {split!r}.",
    )
    images = Path(os.path.expanduser(images)) if images else raw("landmarks") / "train"
    return Path(os.path.expanduser(split)) if split else fetch_split(), images


def _known(maker: Any, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options; raises if the data set does not have them."""
    parameters = list(inspect.signature(maker).parameters.values())
    known = [p.name for p in parameters if p.default is not inspect.Parameter.empty]
    known = [] if name == "digits" else known
    for option in options:
        if option not in known:
            raise unknown(f"option of data set {name}", option, known or ["(it has none)"])
    return options


def label_counts(data: FederatedData, classes: int) -> Array:
    """The number of examples of each class (or of each character) that each client has."""
    per_row = data.y.size // len(data.y)
    client = np.repeat(np.arange(data.num_clients), data.sizes * per_row)
    flat = client * classes + np.asarray(data.y).reshape(-1)
    counts = np.bincount(flat, minlength=data.num_clients * classes)
    return counts.reshape(data.num_clients, classes)
