"""Which client holds which example, read from a file.

split.npy              an integer per training example: its client, or -1 for none
splits.npz:key         the same, as one array of several
split.json             {"users": [...], "user_data": {user: {"x": ["img_7_label_3.png", ...]}}},
                       the published Dirichlet splits; or "x": [7, ...]
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.federated import Array

_IMAGE = re.compile(r"img_(\d+)_label_(\d+)\.\w+")


def read_assignment(source: str, labels: Array) -> Array:
    """The client of each example, checked against the data set."""
    path, _, key = source.partition(".npz:")
    file = Path(path + ".npz" if key else source).expanduser()
    check(file.is_file(), f"{file}: there is no such split file.")
    try:
        clients = _from_json(file, labels) if file.suffix == ".json" else _from_numpy(file, key)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file}: not a split file: {error!r}") from None
    check(
        clients.shape == labels.shape[:1],
        f"{file}: has clients for {clients.size:,} examples, but the data set has {len(labels):,}.",
    )
    check(bool((clients >= 0).any()), f"{file}: no example belongs to a client.")
    return clients


def _from_numpy(file: Path, key: str) -> Array:
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, np.ndarray):
        with content:
            known = ", ".join(content.files)
            check(key in content.files, f"{file}: say which array, as in {file}:KEY; has {known}.")
            content = content[key]
    check(content.dtype.kind in "iu", f"{file}: clients must be integers, got {content.dtype}.")
    clients: Array = content.astype(np.int64)
    return clients


def _from_json(file: Path, labels: Array) -> Array:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    clients = np.full(len(labels), -1, np.int64)
    for client, user in enumerate(content["users"]):
        for entry in content["user_data"][user]["x"]:
            index, label = _index(entry, file)
            fits = 0 <= index < len(labels) and (label is None or labels[index] == label)
            check(fits, f"{file}: {entry!r} of user {user!r} does not fit the data set.")
            check(clients[index] < 0, f"{file}: {entry!r} of user {user!r} has another user too.")
            clients[index] = client
    return clients


def _index(entry: Any, file: Path) -> tuple[int, int | None]:
    """The position of an image, and its label if its name has one."""
    if isinstance(entry, int):
        return entry, None
    match = _IMAGE.fullmatch(str(entry).rsplit("/", 1)[-1])
    if match is None:
        raise UsageError(f"{file}: expected names like img_7_label_3.png, got {entry!r}.")
    return int(match[1]), int(match[2])
