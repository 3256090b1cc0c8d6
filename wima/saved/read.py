"""Reads checkpoints piece by piece: safetensors, PyTorch, npz, and models in several files."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from wima.core.errors import check
from wima.saved.tensors import BY_NUMPY, STORED, Array, Spec, check_dtype, reading

TORCH = (".pt", ".pth", ".ckpt", ".bin")
INDEX = ".json"
KNOWN = f".safetensors, .npz, {', '.join(TORCH)}, or an index such as model.safetensors.index.json"


class Checkpoint(Protocol):
    """A file whose tensors can be read in part."""

    @property
    def tensors(self) -> Mapping[str, Spec]: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    def read(self, name: str, begin: int, end: int) -> Array:
        """Some numbers of a tensor, counted row by row, as they are stored."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class SafetensorsFile:
    """The tensors of a .safetensors file; safetensors checks its header."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        with reading(path, (OSError, SafetensorError, ValueError)):
            with safe_open(path, framework="numpy"):  # refuses incomplete files
                self._file = path.open("rb")
            size = int.from_bytes(self._file.read(8), "little")
            header = json.loads(self._file.read(size))
        self.metadata = header.pop("__metadata__", {})
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
        check(len(numbers) == end - begin, f"{self.path} became shorter while it was read.")
        return numbers

    def close(self) -> None:
        self._file.close()


class NpzFile:
    """The arrays of an .npz file."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        with reading(path, (OSError, zipfile.BadZipFile)):
            self._zip = zipfile.ZipFile(path)
        names = [name.removesuffix(".npy") for name in self._zip.namelist()]
        try:
            self.tensors = {name: self._spec(name) for name in names}
        except BaseException:
            self.close()
            raise

    def _spec(self, name: str) -> Spec:
        with self._open(name) as file:
            shape, _, dtype = self._header(name, file)
        native = dtype.newbyteorder("=")
        check_dtype(self.path, name, str(dtype), native in BY_NUMPY)
        return Spec(BY_NUMPY[native], shape)

    def read(self, name: str, begin: int, end: int) -> Array:
        with self._open(name) as file:
            shape, by_columns, dtype = self._header(name, file)
            by_columns = by_columns and len(shape) > 1
            first, last = (0, self.tensors[name].numel) if by_columns else (begin, end)
            data = self._bytes(file, first * dtype.itemsize, last * dtype.itemsize)
        numbers = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)
        return numbers.reshape(shape, order="F").ravel()[begin:end] if by_columns else numbers

    def _open(self, name: str) -> IO[bytes]:
        with reading(self.path, MALFORMED):
            return self._zip.open(f"{name}.npy")

    def _header(self, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Shape, order and dtype; never an object's."""
        with reading(self.path, MALFORMED, f"array {name!r}"):
            version = np.lib.format.read_magic(file)
            shape, by_columns, dtype = HEADERS[version](file)
            return shape, by_columns, dtype

    def _bytes(self, file: IO[bytes], begin: int, end: int) -> bytes:
        with reading(self.path, MALFORMED):
            file.seek(begin, os.SEEK_CUR)
            data = file.read(end - begin)
        check(len(data) == end - begin, f"{self.path} ends too early; expected a whole .npz file.")
        return data

    def close(self) -> None:
        self._zip.close()


# What zipfile and numpy raise for invalid bytes.
MALFORMED = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
                missing = f"{path}: {file} holds no tensor {name!r}, which the index says it does."
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
    """Tensor -> file beside the index."""
    with reading(path, NO_INDEX, "no index of a sharded model"):
        where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files = set(where.values())
    for file in files:
        plain = isinstance(file, str) and Path(file).name == file and not file.endswith(INDEX)
        check(plain, f"{path}: expected files beside the index, got {file!r}.")
    return dict(where)


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a file by its ending; `key`: where a PyTorch file holds the weights."""
    kind = path.suffix.lower()
    if kind in TORCH:
        from wima.saved.torchfile import TorchFile

        return TorchFile(path, key)
    readers: dict[str, Callable[[Path, str | None], Checkpoint]] = {
        ".safetensors": SafetensorsFile,
        ".npz": NpzFile,
        INDEX: ShardedModel,
    }
    check(kind in readers, f"{path}: unknown kind of checkpoint; expected {KNOWN}.")
    return readers[kind](path, key)
