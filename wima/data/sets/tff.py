"""TFF's federated CIFAR-100: an lzma-compressed SQLite file of serialized tf.train.Examples.

    examples(split_name, client_id, serialized_example_proto)

An Example is a map from names to lists; here `image` (3,072 integers, height x width x channel),
`label` and `coarse_label`.  The few wire-format fields that occur are parsed by hand.
"""

from __future__ import annotations

import lzma
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import DataSet, RawData, Remote
from wima.data.federated import Array
from wima.data.sets import fedjax
from wima.data.sets.cifar import CLASSES100, TERMS, cifar100_images
from wima.data.splits.labels import check_names
from wima.storage.reading import check_file, check_unpacked

CHUNK = 2**20  # bytes
LONGEST = 63  # bits before the last seven of a number
ARCHIVE = "cifar100.sqlite.lzma"


def read_pam(source: Path) -> RawData:
    """500 training and 100 test clients with 100 images each."""
    if source.is_dir():
        found = [source / name for name in (ARCHIVE, "cifar100.sqlite") if (source / name).exists()]
        check(bool(found), f"{source}: no {ARCHIVE} and no cifar100.sqlite in this folder.")
        source = found[0]
    check_file(source)
    if source.suffix == ".sqlite":
        return _read(source, source)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "cifar100.sqlite"
        try:
            with lzma.open(source) as packed, plain.open("wb") as file:
                while data := packed.read(CHUNK):
                    check_unpacked(source, file.tell() + len(data))
                    file.write(data)
        except (lzma.LZMAError, EOFError, OSError) as error:
            raise UsageError(f"{source}: truncated, or not an lzma file: {error}") from None
        return _read(plain, source)


def _read(path: Path, source: Path) -> RawData:
    x, y, groups, clients = _split(path, source, "train")
    x_test, y_test, _, _ = _split(path, source, "test")
    return RawData(x, y, x_test, y_test, 100, clients=clients, groups=groups)


def _split(path: Path, source: Path, split: str) -> tuple[Array, Array, Array, Array]:
    """Images, labels, coarse labels and clients; `source` is the file named in errors."""
    images, labels, groups, clients = [], [], [], []
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    try:
        with fedjax.opened(path, "examples") as db:
            for client, blob in db.execute(f"{query} ORDER BY client_id, rowid", (split,)):
                example = parse_example(memoryview(blob).tobytes())
                images.append(np.array(example["image"], np.uint8).reshape(32, 32, 3))
                labels.append(example["label"][0])
                groups.append(example["coarse_label"][0])
                clients.append(client.decode() if isinstance(client, bytes) else str(client))
    except (sqlite3.DatabaseError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{source}: not TFF's CIFAR-100, or damaged: {error!r}") from None
    check_names(clients)
    check(bool(images), f"{source}: no examples in split {split!r}.")
    x = np.stack(images).transpose(0, 3, 1, 2)
    return x, np.array(labels), np.array(groups), np.array(clients)


def parse_example(data: bytes) -> dict[str, list[int]]:
    """The integer lists of a serialized tf.train.Example, by name."""
    found = {}
    for _, features in _fields(data):  # Example.features
        for _, entry in _fields(features):  # Features.feature, a map
            parts = dict(_fields(entry))
            for kind, values in _fields(parts[2]):  # Feature: 3 is int64_list
                if kind == 3:
                    found[parts[1].decode()] = _integers(values)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message: number and content."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 != 2:
            raise ValueError(f"unexpected wire type {key & 7}")
        size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("message ends inside a field")
        yield key >> 3, data[at : at + size]
        at += size


def _integers(data: bytes) -> list[int]:
    """Int64List.value, packed or one by one."""
    values, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        size, at = _varint(data, at) if key & 7 == 2 else (1, at)
        end = at + size if key & 7 == 2 else at + 1
        while at < end:
            value, at = _varint(data, at)
            values.append(value)
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > LONGEST:
            raise ValueError("message ends inside a number")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


PAM = DataSet(
    "cifar100-pam",
    TERMS,
    (
        Remote(
            ARCHIVE,
            f"https://storage.googleapis.com/tff-datasets-public/{ARCHIVE}",
            "sha256:23d3916c9caa33395737ee560cc7cb77bbd05fc7b73647ee7be3a7e764172939",
            153_019_920,
        ),
    ),
    read_pam,
    cifar100_images,
    expects=f"TFF's {ARCHIVE} or the unpacked cifar100.sqlite",
    labels=tuple(CLASSES100.split()),
    clients=500,
)
