"""Reads checkpoints piece by piece: safetensors, PyTorch, npz, and models in several files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from wima.core.errors import check
from wima.model_files.npz import NpzFile, Streams
from wima.model_files.tensors import STORED, Array, Spec, check_dtype, reading
from wima.storage.reading import TEXT, check_file, read_text

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
        return numbers

    def close(self) -> None:
        self._file.close()


class ShardedModel:
    """A model in several files, with an index of where each tensor is."""

    def __init__(self, path: Path, key: str | None = None, streams: Streams | None = None) -> None:
        where = _weight_map(path)
        self._shards: dict[str, Checkpoint] = {}
        self._stack = ExitStack()
        try:
            for file in dict.fromkeys(where.values()):
                shard = open_checkpoint(path.parent / file, key, streams)
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


def open_checkpoint(
    path: Path, key: str | None = None, streams: Streams | None = None
) -> Checkpoint:
    """Open a file by its suffix.  key: of the weights in a PyTorch file.

    streams: for files that are opened repeatedly, where to continue in compressed ones.
    """
    kind = path.suffix.lower()
    if kind in TORCH:
        from wima.model_files.torchfile import TorchFile

        return TorchFile(path, key)
    readers: dict[str, Callable[[], Checkpoint]] = {
        ".safetensors": lambda: SafetensorsFile(path, key),
        ".npz": lambda: NpzFile(path, key, streams),
        INDEX: lambda: ShardedModel(path, key, streams),
    }
    check(kind in readers, f"{path}: unknown kind of checkpoint; expected {KNOWN}.")
    return readers[kind]()
