"""Selects checkpoints, and opens them by their suffix: one file, or a model in several files."""

import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wima.core.errors import check, check_count, check_one_of
from wima.model_files.tensors import Array, Checkpoint, NpzFile, SafetensorsFile, reading
from wima.storage.files import check_file, read_text

TORCH = (".pt", ".pth", ".ckpt", ".bin")
INDEX = ".json"
ENDINGS = (".safetensors", ".npz", *TORCH)
KNOWN = f".safetensors, .npz, {', '.join(TORCH)}, or an index such as model.safetensors.index.json"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
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
