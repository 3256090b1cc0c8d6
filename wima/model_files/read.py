"""Reads checkpoints piece by piece: safetensors, npz, PyTorch, and models in several files.

These files may come from anybody, so sizes are checked before anything is allocated.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open

from wima.core.errors import check, check_count, check_one_of
from wima.model_files.tensors import (
    BY_NUMPY,
    STORED,
    Array,
    Spec,
    check_dtype,
    open_archive,
    reading,
)
from wima.storage.files import TEXT, check_file, read_text

TORCH = (".pt", ".pth", ".ckpt", ".bin")
INDEX = ".json"
ENDINGS = (".safetensors", ".npz", *TORCH)
KNOWN = f".safetensors, .npz, {', '.join(TORCH)}, or an index such as model.safetensors.index.json"
SUM = "about"  # key in the metadata of snapshots that version 0.1.0 wrote: sums of models
SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
IN_FOLDER = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "model.safetensors",
    "pytorch_model.bin",
)
HEADER = 12 + 10_000  # bytes: numpy refuses longer headers
STORABLE = 2**63 - 1  # bytes; numpy and torch count them in 64 bits
MALFORMED = (OSError, ValueError, zipfile.BadZipFile, zlib.error)


def _by_number(path: Path) -> tuple[list[int | str], str]:
    """Sort key that treats digits as numbers: step_9 comes before step_10."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], str(path)


ORDERS: dict[str, Callable[[Path], Any]] = {
    "number": _by_number,
    "time": lambda path: (path.stat().st_mtime_ns, _by_number(path)),
    "given": lambda path: 0,
}


def select(
    names: Sequence[str], order: str = "number", last: int | None = None, every: int = 1
) -> list[Path]:
    """The selected checkpoints, oldest first: every `every`-th of the `last` ones.

    names: files, folders, or patterns with * ? [ ] of both.  A folder stands for the model that
    Hugging Face wrote there, or else for all checkpoints in it.  The newest checkpoint is always
    selected; with every=3, then the third before it, and so on.
    """
    check_one_of("--order", order, tuple(ORDERS))
    check_count("--every", every)
    distinct: dict[Path, Path] = {}  # a file given twice counts once
    for file in (file for name in names for file in _matches(name)):
        check_file(file)
        distinct.setdefault(file.resolve(), file)
    files = sorted(distinct.values(), key=ORDERS[order])
    if last is not None:
        check_count("--last", last)
        files = files[-last:]
    return files[::-1][::every][::-1]


def _matches(name: str) -> list[Path]:
    if os.path.exists(name):
        return _files(Path(name))
    check(glob.has_magic(name), f"Cannot read {name}: the file does not exist.")
    matches = sorted(glob.glob(name, recursive=True))
    check(bool(matches), f"No file matches {name!r}; expected at least one checkpoint.")
    return [file for match in matches for file in _files(Path(match))]


def _files(path: Path) -> list[Path]:
    """The file itself, the model in a folder, or the checkpoints in it."""
    check(
        not SHARD.search(path.name),
        f"{path} is one part of a model in several files; expected its index, "
        "such as model.safetensors.index.json, or its folder.",
    )
    if not os.path.isdir(path):
        return [path]
    models = [path / name for name in IN_FOLDER if (path / name).is_file()]
    files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in ENDINGS]
    wanted = f"{', '.join(IN_FOLDER)}, and no other checkpoint"
    check(bool(models or files), f"The folder {path} contains none of {wanted}.")
    return models[:1] or [file for file in files if not file.name.startswith(".")]


class Checkpoint(Protocol):
    """A file whose tensors can be read in part."""

    @property
    def tensors(self) -> Mapping[str, Spec]: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    def read(self, name: str, begin: int, end: int) -> Array:
        """The numbers begin ... end - 1 of a tensor in row-major order, as stored."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class SafetensorsFile:
    """The tensors of a .safetensors file; safetensors checks its header."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        check_file(path)
        with reading(path, (OSError, SafetensorError, ValueError, RecursionError)):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                most = f"expected at most {TEXT:,}"
                check(size <= TEXT, f"{path} is damaged: its header has {size:,} bytes; {most}.")
                header = json.loads(file.read(size))
            with safe_open(path, framework="numpy"):  # raises if the header does not match the file
                self._file = path.open("rb")
        self.metadata = header.pop("__metadata__", {})
        self._models = _summed(path, self.metadata) if SUM in self.metadata else 1
        for name, about in header.items():
            check_dtype(path, name, about["dtype"], about["dtype"] in STORED)
        self.tensors = {
            n: Spec(about["dtype"], tuple(about["shape"])) for n, about in header.items()
        }
        self._begin = {name: 8 + size + about["data_offsets"][0] for name, about in header.items()}

    def read(self, name: str, begin: int, end: int) -> Array:
        stored = STORED[self.tensors[name].dtype]
        with reading(self.path, (OSError,)):
            self._file.seek(self._begin[name] + begin * stored.itemsize)
            numbers = np.fromfile(self._file, stored, end - begin)
        check(len(numbers) == end - begin, f"{self.path} was truncated while it was being read.")
        return numbers if self._models == 1 else numbers / self._models

    def close(self) -> None:
        self._file.close()


def _summed(path: Path, metadata: Mapping[str, str]) -> int:
    """How many models a snapshot of version 0.1.0 sums; it is read as their mean."""
    with reading(path, (ValueError, KeyError, TypeError), "not a snapshot"):
        about = json.loads(metadata[SUM])
        return max(1, int(about["last"]) - int(about["first"]) + 1)


class Header(NamedTuple):
    """The header of an .npy file."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    begin: int  # offset of the numbers, in bytes


def read_header(first: bytes, size: int) -> Header:
    """The header in the first `HEADER` bytes of an .npy file of `size` bytes.

    Raises `ValueError` if the file is too small for the declared array or holds Python objects.
    """
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    file = io.BytesIO(first)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, by_columns, dtype = readers[npy.read_magic(file)](file)
    except Exception as error:  # numpy can raise anything on damaged data
        raise ValueError(f"invalid .npy header ({type(error).__name__}: {error})") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    length = max(1, dtype.itemsize)
    storable = min(shape, default=0) >= 0 and prod(n or 1 for n in shape) * length <= STORABLE
    if not storable or file.tell() + prod(shape) * length > size:
        raise ValueError(f"it declares shape {shape} of {dtype}, but has {size:,} bytes")
    return Header(shape, by_columns, dtype, file.tell())


class NpzFile:
    """The arrays of an .npz file; each is read whole, and kept until the next one is read."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self._open: tuple[str, Array] | None = None  # the array that was read last
        with reading(path, MALFORMED):
            self._archive = open_archive(path)
        try:
            self._members = {m.filename.removesuffix(".npy"): m for m in self._archive.infolist()}
            self._headers = {name: self._header(name) for name in self._members}
        except BaseException:
            self.close()
            raise
        self.tensors = {
            name: Spec(BY_NUMPY[header.dtype.newbyteorder("=")], header.shape)
            for name, header in self._headers.items()
        }

    def _header(self, name: str) -> Header:
        member = self._members[name]
        with (
            reading(self.path, MALFORMED, f"array {name!r:.80}"),
            self._archive.open(member) as file,
        ):
            header = read_header(file.read(HEADER), member.file_size)
        known = header.dtype.newbyteorder("=") in BY_NUMPY
        check_dtype(self.path, name, str(header.dtype), known)
        return header

    def read(self, name: str, begin: int, end: int) -> Array:
        with reading(self.path, (*MALFORMED, EOFError)):
            if self._open is None or self._open[0] != name:
                with self._archive.open(self._members[name]) as file:
                    self._open = name, npy.read_array(file, allow_pickle=False)
            numbers = self._open[1].flat[begin:end]
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._open = None
        self._archive.close()


class ShardedModel:
    """A model in several files, with an index of where each tensor is."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        where = _weight_map(path)
        self._shards: dict[str, Checkpoint] = {}
        self._stack = ExitStack()
        try:
            for file in dict.fromkeys(where.values()):
                shard = open_checkpoint(path.parent / file, key)
                self._shards[file] = self._stack.enter_context(closing(shard))
            for name, file in where.items():
                missing = f"{path}: {file} has no tensor {name!r}, although the index lists it."
                check(name in self._shards[file].tensors, missing)
        except BaseException:
            self.close()
            raise
        self._where = where
        self.tensors = {name: self._shards[file].tensors[name] for name, file in where.items()}
        self.metadata = next(iter(self._shards.values())).metadata if where else {}

    def read(self, name: str, begin: int, end: int) -> Array:
        return self._shards[self._where[name]].read(name, begin, end)

    def close(self) -> None:
        self._stack.close()


NO_INDEX = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file in the folder of the index."""
    with reading(path, NO_INDEX, "not an index of a sharded model"):
        where = json.loads(read_text(path))["weight_map"]
        files = set(where.values())
    for file in files:
        plain = isinstance(file, str) and Path(file).name == file and not file.endswith(INDEX)
        check(plain, f"{path}: expected files in the folder of the index, got {file!r}.")
    return dict(where)


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a file by its suffix.  key: of the weights in a PyTorch file."""
    kind = path.suffix.lower()
    if kind in TORCH:
        from wima.model_files.torchfile import TorchFile

        return TorchFile(path, key)
    readers: dict[str, Callable[[Path, str | None], Checkpoint]] = {
        ".safetensors": SafetensorsFile,
        ".npz": NpzFile,
        INDEX: ShardedModel,
    }
    check(kind in readers, f"{path}: unknown kind of checkpoint; expected {KNOWN}.")
    return readers[kind](path, key)
