"""Which client holds which example, read from a file.

split.npy              one integer per training example: its client, or -1 for none
splits.npz:key         the same, as one of several arrays
split.json             {"users": [...], "user_data": {user: {"x": ["img_7_label_3.png", ...]}}},
                       the published Dirichlet splits; or "x": [7, ...]
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.federated import Array
from wima.data.mapped import open_mapped
from wima.storage.reading import TEXT, open_archive, read_array, read_text

ENTRY = 200  # largest line of a .json file, in bytes
_IMAGE = re.compile(r"img_(\d+)_label_(\d+)\.\w+")


def read_assignment(source: str, labels: Array) -> Array:
    """The client of each example, checked against the data set."""
    path, _, key = source.partition(".npz:")
    file = Path(os.path.expanduser(path + ".npz" if key else source))
    check(os.path.isfile(file), f"{file}: no such split file.")
    try:
        clients = _from_json(file, labels) if file.suffix == ".json" else _from_numpy(file, key)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file}: not a split file: {error!r}") from None
    check(
        clients.shape == labels.shape[:1],
        f"{file}: expected {len(labels):,} clients, one per example, got shape {clients.shape}.",
    )
    check(bool((clients >= 0).any()), f"{file}: no example belongs to a client.")
    return clients


def _from_numpy(file: Path, key: str) -> Array:
    if is_zipfile(file):
        with open_archive(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            known = ", ".join(names)
            check(key in names, f"{file}: name the array, as in {file}:KEY; it has {known:.200}.")
            content = read_array(archive, key)
    else:
        content = open_mapped(file)
    check(content.dtype.kind in "iu", f"{file}: clients must be integers, got {content.dtype}.")
    clients: Array = content.astype(np.int64)
    return clients


def _from_json(file: Path, labels: Array) -> Array:
    content: dict[str, Any] = json.loads(read_text(file, TEXT + ENTRY * len(labels)))
    clients = np.full(len(labels), -1, np.int64)
    for client, user in enumerate(content["users"]):
        for entry in content["user_data"][user]["x"]:
            index, label = _index(entry, file)
            fits = 0 <= index < len(labels) and (label is None or labels[index] == label)
            whose = f"{entry!r:.80} of user {user!r:.80}"
            check(fits, f"{file}: {whose} does not match the data set.")
            check(clients[index] < 0, f"{file}: {whose} is assigned more than once.")
            clients[index] = client
    return clients


def _index(entry: Any, file: Path) -> tuple[int, int | None]:
    """The position of an image, and its label if its name has one."""
    if isinstance(entry, int):
        return entry, None
    match = _IMAGE.fullmatch(str(entry).rsplit("/", 1)[-1])
    if match is None:
        raise UsageError(f"{file}: expected names like img_7_label_3.png, got {entry!r:.80}.")
    return int(match[1]), int(match[2])
