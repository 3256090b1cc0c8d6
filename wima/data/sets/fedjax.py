"""FedJAX's files: an SQLite table with a row per client.

    federated_data(client_id BLOB, data BLOB, num_examples INTEGER)

`data` is zlib(msgpack(name -> array)); arrays are msgpack extensions: 1 = (shape, dtype, bytes),
4 = (shape, list of byte strings).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import Remote
from wima.data.federated import Array

ADDRESS = "https://storage.googleapis.com/gresearch/fedjax/"
Client = tuple[str, Array, Array]  # name, examples, labels
DTYPES = {"float32", "float64", "int32", "int64", "uint8", "int8", "bool"}


def clients(path: Path, *columns: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each client's name and arrays, in the order of names; the arrays must have these columns."""
    check(path.is_file(), f"{path}: there is no such file.")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = db.execute("SELECT client_id, data, num_examples FROM federated_data ORDER BY 1")
        for client, blob, count in rows:
            name = client.decode() if isinstance(client, bytes) else str(client)
            arrays = _decode(path, name, blob)
            for column in columns:
                got = list(arrays)
                check(column in arrays, f"{path}: client {name} has no {column}, got {got}.")
            found = len(arrays[columns[0]])
            check(
                found == count and count > 0,
                f"{path}: client {name} should have {count} examples, got {found}.",
            )
            yield name, arrays
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path}: not FedJAX's SQLite file, or damaged: {error}") from None
    finally:
        db.close()


def joined(path: Path, clients: Iterable[Client], kind: str) -> tuple[Array, Array, Array]:
    """The examples of all clients, their labels, and the client of each; kind: of the clients."""
    found = list(clients)
    check(bool(found), f"{path}: no {kind}.")
    names, x, y = zip(*found, strict=True)
    client = np.repeat(names, [len(labels) for labels in y])
    return np.concatenate(x), np.concatenate(y).astype(np.int64), client


def remotes(folder: str, names: tuple[str, ...]) -> tuple[Remote, ...]:
    """FedJAX's files in a folder of its address."""
    return tuple(Remote(name, f"{ADDRESS}{folder}/{name}") for name in names)


def check_folder(source: Path, names: tuple[str, str]) -> None:
    check(source.is_dir(), f"{source}: expected the folder that holds {names[0]} and {names[1]}.")


def _decode(path: Path, client: str, blob: bytes) -> dict[str, Any]:
    try:
        arrays = msgpack.unpackb(zlib.decompress(blob), ext_hook=_array, raw=False)
        return dict(arrays)
    except (zlib.error, ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise UsageError(f"{path}: the data of client {client} are damaged: {error}") from None


def _array(code: int, data: bytes) -> Array | list[bytes]:
    if code == 1:
        shape, dtype, content = msgpack.unpackb(data, raw=False)
        if dtype not in DTYPES:
            raise ValueError(f"unexpected dtype {dtype!r}")
        return np.frombuffer(content, dtype).reshape(shape)
    if code == 4:
        shape, texts = msgpack.unpackb(data, raw=False)
        if len(texts) != prod(shape):
            raise ValueError(f"{len(texts)} texts for shape {shape}")
        return list(texts)
    raise ValueError(f"unexpected msgpack extension {code}")
