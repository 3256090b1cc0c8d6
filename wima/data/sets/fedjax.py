"""FedJAX's files: an SQLite table with one row per client.

    federated_data(client_id BLOB, data BLOB, num_examples INTEGER)

`data` is zlib(msgpack(name -> array)); arrays are msgpack extensions: 1 = (shape, dtype, bytes),
4 = (shape, list of byte strings).
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import Remote, open_sqlite
from wima.data.federated import Array

ADDRESS = "https://storage.googleapis.com/gresearch/fedjax/"


def clients(path: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Each client's name and these of its arrays, sorted by name."""
    query = "SELECT client_id, data FROM federated_data ORDER BY 1"
    problem = "not FedJAX's SQLite file, or damaged"
    try:
        with closing(open_sqlite(path)) as db:
            for client, blob in db.execute(query):
                name = client.decode() if isinstance(client, bytes) else str(client)
                problem = f"the data of client {name} are damaged"
                data = msgpack.unpackb(zlib.decompress(blob), ext_hook=_array, raw=False)
                yield name, *(data[column] for column in columns)
    except Exception as error:  # damaged bytes can raise anything in msgpack and numpy
        raise UsageError(f"{path}: {problem}: {type(error).__name__}: {error}") from None


def _array(code: int, data: bytes) -> Array | list[bytes]:
    shape, *content = msgpack.unpackb(data, raw=False)
    if code == 1:
        return np.frombuffer(content[1], content[0]).reshape(shape)
    if code == 4:
        return list(content[0])
    raise ValueError(f"unexpected msgpack extension {code}")


def joined(
    path: Path, clients: Iterable[tuple[str, Array, Array]], kind: str
) -> tuple[Array, Array, Array]:
    """All clients' examples, labels, and the client of each; kind: what clients are called."""
    parts = list(clients)
    check(bool(parts), f"{path}: no {kind}.")
    names, x, y = zip(*parts, strict=True)
    client = np.repeat(names, [len(labels) for labels in y])
    return np.concatenate(x), np.concatenate(y).astype(np.int64), client


def remotes(folder: str, names: tuple[str, ...]) -> tuple[Remote, ...]:
    """FedJAX's files in a folder of its server."""
    return tuple(Remote(f"{ADDRESS}{folder}/{name}") for name in names)


def check_folder(source: Path, names: tuple[str, str]) -> None:
    check(source.is_dir(), f"{source}: expected the folder that holds {names[0]} and {names[1]}.")
