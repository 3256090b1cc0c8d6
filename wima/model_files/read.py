"""Reads checkpoints piece by piece: safetensors, npz, PyTorch, and models in several files.

These files may come from anybody, so sizes are checked before anything is allocated.
"""

import glob
import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from safetensors import safe_open

from wima.core.errors import check, check_count, check_one_of
from wima.model_files.tensors import (
    BY_NUMPY,
    STORED,
    Array,
    Checkpoint,
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
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # of .npy files
IN_FOLDER = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "model.safetensors",
    "pytorch_model.bin",
)


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


class SafetensorsFile(Checkpoint):
    """The tensors of a .safetensors file; safetensors checks its header."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        check_file(path)
        with reading(path):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                most = f"expected at most {TEXT:,}"
                check(size <= TEXT, f"{path} is damaged: its header has {size:,} bytes; {most}.")
                header = json.loads(file.read(size))
            with safe_open(path, framework="numpy"):
                pass  # it raises if the header does not match the file
        self.metadata = header.pop("__metadata__", {})
        self._models = _summed(path, self.metadata[SUM]) if SUM in self.metadata else 1
        self.tensors, self._begin = {}, {}
        for name, about in header.items():
            check_dtype(path, name, about["dtype"], about["dtype"] in STORED)
            self.tensors[name] = Spec(about["dtype"], tuple(about["shape"]))
            self._begin[name] = 8 + size + about["data_offsets"][0]

    def read(self, name: str, begin: int, end: int) -> Array:
        stored = STORED[self.tensors[name].dtype]
        offset = self._begin[name] + begin * stored.itemsize
        with reading(self.path):
            numbers = np.fromfile(self.path, stored, end - begin, offset=offset)
        check(len(numbers) == end - begin, f"{self.path} was truncated while it was being read.")
        return numbers if self._models == 1 else numbers / self._models


def _summed(path: Path, text: str) -> int:
    """How many models a snapshot of version 0.1.0 sums; it is read as their mean."""
    with reading(path, "not a snapshot: "):
        about = json.loads(text)
        return max(1, int(about["last"]) - int(about["first"]) + 1)


class NpzFile(Checkpoint):
    """The arrays of an .npz file; each is read whole, and kept until the next one is read."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path, self.metadata = path, {}
        self._last: tuple[str, Array] | None = None  # the array that was read last
        self._archive = open_archive(path)
        self._members = {m.filename.removesuffix(".npy"): m for m in self._archive.infolist()}
        self.tensors = {name: self._spec(name) for name in self._members}

    def _spec(self, name: str) -> Spec:
        """From the header of an array, whose size must be that of the member."""
        member = self._members[name]
        with reading(self.path, f"array {name!r:.80}: "), self._archive.open(member) as file:
            with warnings.catch_warnings():  # about headers that Python 2 wrote
                warnings.simplefilter("ignore")
                shape, _, dtype = HEADERS[npy.read_magic(file)](file)
            native = dtype.newbyteorder("=")
            check_dtype(self.path, name, str(dtype), native in BY_NUMPY)
            # numpy and torch count bytes in 64 bits, also if one of the dimensions is 0.
            storable = min(shape, default=0) >= 0 and prod(n or 1 for n in shape) < 2**59
            if not storable or file.tell() + prod(shape) * dtype.itemsize > member.file_size:
                size = f"{member.file_size:,} bytes"
                raise ValueError(f"it declares shape {shape} of {dtype}, but has {size}")
        return Spec(BY_NUMPY[native], shape)

    def read(self, name: str, begin: int, end: int) -> Array:
        with reading(self.path, f"array {name!r:.80}: "):
            if self._last is None or self._last[0] != name:
                with self._archive.open(self._members[name]) as file:
                    self._last = name, npy.read_array(file, allow_pickle=False)
            numbers = self._last[1].flat[begin:end]
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._last = None
        self._archive.close()


class ShardedModel(Checkpoint):
    """A model in several files, with an index of where each tensor is."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        with reading(path, "not an index of a sharded model: "):
            self._where: dict[str, str] = dict(json.loads(read_text(path))["weight_map"])
            files = list(dict.fromkeys(self._where.values()))
        for file in files:
            plain = isinstance(file, str) and Path(file).name == file and not file.endswith(INDEX)
            check(plain, f"{path}: expected files in the folder of the index, got {file!r}.")
        self._shards = {file: open_checkpoint(path.parent / file, key) for file in files}
        for name, file in self._where.items():
            missing = f"{path}: {file} has no tensor {name!r}, although the index lists it."
            check(name in self._shards[file].tensors, missing)
        self.tensors = {n: self._shards[file].tensors[n] for n, file in self._where.items()}
        self.metadata = self._shards[files[0]].metadata if files else {}

    def read(self, name: str, begin: int, end: int) -> Array:
        return self._shards[self._where[name]].read(name, begin, end)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()


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
