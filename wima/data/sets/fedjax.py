"""FedJAX's files: an SQLite table with one row per client.

    federated_data(client_id BLOB, data BLOB, num_examples INTEGER)

`data` is zlib(msgpack(name -> array)); arrays are msgpack extensions: 1 = (shape, dtype, bytes),
4 = (shape, list of byte strings).
"""

from __future__ import annotations

import itertools
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import Remote
from wima.data.federated import Array
from wima.data.splits.labels import check_names
from wima.storage.reading import UNPACKED, check_file, check_unpacked

STEPS, INTERVAL = 10**7, 10**5  # steps of SQLite's virtual machine; steps between checks
ADDRESS = "https://storage.googleapis.com/gresearch/fedjax/"
Client = tuple[str, Array, Array]  # name, examples, labels
DTYPES = {"float32", "float64", "int32", "int64", "uint8", "int8", "bool"}


def clients(path: Path, *columns: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each client's name and arrays, sorted by name; these columns are required."""
    query = "SELECT client_id, data, num_examples FROM federated_data ORDER BY 1"
    unpacked = 0
    try:
        with opened(path, "federated_data") as db:
            for client, blob, count in db.execute(query):
                name = client.decode() if isinstance(client, bytes) else str(client)
                content = _unpack(path, name, blob)
                unpacked += len(content)
                check_unpacked(path, unpacked)
                yield name, _checked(path, name, _decode(path, name, content), columns, count)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not FedJAX's SQLite file, or damaged: {error}") from None


def _checked(
    path: Path, name: str, arrays: dict[str, Any], columns: Sequence[str], count: Any
) -> dict[str, Any]:
    for column in columns:
        got = list(arrays)
        check(column in arrays, f"{path}: client {name} has no {column}, got {got}.")
        several = isinstance(arrays[column], list) or np.ndim(arrays[column]) > 0
        check(several, f"{path}: {column} of client {name} must have one row per example.")
    found = len(arrays[columns[0]])
    check(
        found == count and count > 0,
        f"{path}: client {name} has {found} examples and num_examples {count}; expected equal "
        "numbers above 0.",
    )
    return arrays


@contextmanager
def opened(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file that has this table.

    A view or a damaged tree could yield endless rows, so the number of steps is limited.
    """
    check_file(path)
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    checks, most = itertools.count(), (STEPS + 10 * path.stat().st_size) // INTERVAL
    try:
        db.set_progress_handler(lambda: next(checks) > most, INTERVAL)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, UNPACKED)
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?"
        if db.execute(query, (table,)).fetchone() is None:
            raise sqlite3.DatabaseError(f"no such table: {table}")
        yield db
    finally:
        db.close()


def joined(path: Path, clients: Iterable[Client], kind: str) -> tuple[Array, Array, Array]:
    """All clients' examples, labels, and the client of each; kind: what clients are called."""
    found = list(clients)
    check(bool(found), f"{path}: no {kind}.")
    names, x, y = zip(*found, strict=True)
    check_names(names)
    client = np.repeat(names, [len(labels) for labels in y])
    return np.concatenate(x), np.concatenate(y).astype(np.int64), client


def remotes(folder: str, names: tuple[str, ...]) -> tuple[Remote, ...]:
    """FedJAX's files in a folder of its server."""
    return tuple(Remote(name, f"{ADDRESS}{folder}/{name}") for name in names)


def check_folder(source: Path, names: tuple[str, str]) -> None:
    check(source.is_dir(), f"{source}: expected the folder that holds {names[0]} and {names[1]}.")


def _unpack(path: Path, client: str, blob: bytes) -> bytes:
    try:
        unpack = zlib.decompressobj()
        content = unpack.decompress(blob, UNPACKED)
        if not unpack.eof:
            raise ValueError(f"incomplete, or more than {UNPACKED:,} bytes")
        return content
    except (zlib.error, ValueError, TypeError) as error:
        raise UsageError(f"{path}: the data of client {client} are damaged: {error}") from None


def _decode(path: Path, client: str, content: bytes) -> dict[str, Any]:
    try:
        arrays = msgpack.unpackb(content, ext_hook=_array, raw=False)
        return dict(arrays)
    except Exception as error:  # damaged bytes can raise anything in msgpack and numpy
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
