"""Files as FedJAX publishes them, made up: SQLite tables of compressed msgpack."""

from __future__ import annotations

import sqlite3
import zlib

import msgpack
import numpy as np

from wima.data.sets.femnist import FEMNIST

FEMNIST_FILES = tuple(remote.name for remote in FEMNIST.files)


def packed(value):
    """An array as FedJAX packs it into msgpack; a list of byte strings as well."""
    if isinstance(value, list):
        return msgpack.ExtType(4, msgpack.packb(([len(value)], value)))
    content = (value.shape, value.dtype.name, value.tobytes())
    return msgpack.ExtType(1, msgpack.packb(content))


def write_fedjax(path, clients, **blobs):
    """FedJAX's table: client -> columns; `blobs` replaces what is stored of a client."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE federated_data (client_id BLOB, data BLOB, num_examples INTEGER)")
        for name, columns in clients.items():
            content = msgpack.packb({key: packed(value) for key, value in columns.items()})
            blob = blobs.get(name, zlib.compress(content))
            count = len(next(iter(columns.values())))
            db.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (name.encode(), blob, count))
    db.close()


def writer(n, seed=0, **changes):
    """n images of one writer, in whole 255ths of white."""
    random = np.random.default_rng(seed)
    pixels = (random.integers(0, 256, (n, 28, 28)) / 255).astype(np.float32)
    return {"pixels": pixels, "label": random.integers(0, 62, n).astype(np.int32), **changes}


def femnist_folder(folder, clients, **blobs):
    for name in FEMNIST_FILES:
        write_fedjax(folder / name, clients, **blobs)
    return folder
