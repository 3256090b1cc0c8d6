"""Tensors in files that are written once and never changed.

A segment is a safetensors file.  Manifests that need it record its checksum.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wima.core.errors import RunError
from wima.storage.files import digest, remove_drafts, written

SUFFIX = ".safetensors"
NAME = re.compile(r"[a-z]+-\d{9,}\.safetensors")  # other files in the folder are not ours
PART = 2**26  # bytes; larger states are split into several segments, since writing copies the data


class Segments:
    """The segments in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sums: dict[str, str] = {}  # file -> SHA-256
        self._open: dict[str, Any] = {}
        self._needed: set[str] = set()  # by manifests
        self._number = max((int(p.stem.rpartition("-")[2]) for p in self._files()), default=-1)

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob(f"*{SUFFIX}") if NAME.fullmatch(path.name)]

    def write(self, kind: str, tensors: Mapping[str, Tensor], about: Any = None) -> str:
        """Write a new segment; returns its name.  about: JSON, which `about()` reads back."""
        self._number += 1  # never reused: names sort by age
        name = f"{kind}-{self._number:09d}{SUFFIX}"
        with written(self.folder / name) as draft:
            save_file(_apart(tensors), draft, {"about": json.dumps(about)})
            self.sums[name] = digest(draft)
        return name

    def read(self, name: str, key: str) -> Tensor:
        """Read one tensor; the rest of the file is not read."""
        return self._file(name).get_tensor(key)  # type: ignore[no-any-return]

    def about(self, name: str) -> Any:
        """The JSON stored with the segment."""
        return json.loads(self._file(name).metadata()["about"])

    def _file(self, name: str) -> Any:
        if name not in self._open:
            try:
                self._open[name] = safe_open(self.folder / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise RunError(f"{self.folder / name} cannot be read: {error}") from error
        return self._open[name]

    def names(self, kind: str) -> list[str]:
        """The segments of a kind, oldest first."""
        return sorted(path.name for path in self.folder.glob(f"{kind}-*{SUFFIX}"))

    def verify(self, name: str, expected: str) -> None:
        """Raise `RunError` unless the file exists and has this checksum."""
        path = self.folder / name
        if not NAME.fullmatch(name):
            raise RunError(f"{name!r:.80} is not a segment name")
        if not path.is_file():
            raise RunError(f"{path} is missing")
        if digest(path) != expected:
            raise RunError(f"{path} is damaged: its checksum is wrong")
        self.sums[name] = expected
        self._needed.add(name)

    def keep(self, names: Iterable[str]) -> None:
        """Remove drafts, and all segments except those that manifests need."""
        self._needed = set(names)
        remove_drafts(self.folder)
        for path in self._files():
            self.drop(path.name)

    def drop(self, name: str) -> None:
        """Remove a segment, unless a manifest needs it."""
        if name not in self._needed:
            self._open.pop(name, None)
            self.sums.pop(name, None)
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies where tensors share memory, which safetensors refuses."""
    taken: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage()
        if memory.data_ptr() in taken or memory.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        taken.add(memory.data_ptr())
        apart[name] = tensor
    return apart


class Storage(NamedTuple):
    """Where the large parts of a run's state are kept."""

    store: Segments | None = None  # files; None: everything is in memory
    mapped_window: bool = False  # past models in files, not in memory
    client_bytes: float = float("inf")  # of clients' state kept in memory; the rest is in files
    dtype: torch.dtype | None = None  # of past models
