"""What this process does to the files below a folder, operation by operation."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import safetensors.torch


class Operation(NamedTuple):
    """Paths are relative to the folder."""

    kind: str  # create, write, truncate, sync, rename, unlink, mkdir or rmdir
    path: str
    offset: int = 0  # of a write; the length of a truncated file
    data: bytes = b""
    target: str = ""  # of a rename; else the path


class _File(io.FileIO):
    """A file whose writes are noted."""

    def __init__(self, name: str, mode: str, recorder: Recorder) -> None:
        super().__init__(name, mode)
        self._path, self._appends, self._recorder = name, "a" in mode, recorder

    def write(self, data: Any) -> int:
        offset = os.fstat(self.fileno()).st_size if self._appends else self.tell()
        self._recorder.note_write(self._path, bytes(data), offset)
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        size = super().truncate(size)
        self._recorder.note("truncate", self._path, offset=size)
        return size


class Recorder:
    """Stands between a program and the functions that change files."""

    def __init__(self, root: Path) -> None:
        self.root, self.operations, self._paused = root.absolute(), list[Operation](), False
        self._real: dict[str, Callable[..., Any]] = {}

    def note(self, kind: str, path: Any, target: Any = "", **more: Any) -> None:
        if self._paused or not self._covers(path):
            return
        source, target = (
            str(Path(p).absolute().relative_to(self.root)) if p else "" for p in (path, target)
        )
        self.operations.append(Operation(kind, source, target=target, **more))

    def note_write(self, path: Any, data: bytes, offset: int = 0) -> None:
        """In two halves: a crash may come between them."""
        half = len(data) // 2
        for start, part in ((0, data[:half]), (half, data[half:])):
            if part:
                self.note("write", path, offset=offset + start, data=part)

    def _covers(self, path: Any) -> bool:
        known = isinstance(path, str | os.PathLike)
        return known and Path(path).absolute().is_relative_to(self.root)

    def open(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not self._covers(file) or not set(mode) & set("wax+"):
            return self._real["open"](file, mode, *args, **options)
        if "w" in mode or not os.path.exists(file):
            self.note("create", file)
        raw = _File(os.fspath(file), mode.replace("b", "").replace("t", ""), self)
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        names = ("buffering", "encoding", "errors", "newline")
        options = {**dict(zip(names, args, strict=False)), **options}
        return io.TextIOWrapper(buffered, **{name: options.get(name) for name in names[1:]})

    def os_open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        fresh = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        number: int = self._real["os_open"](path, flags, *args, **options)
        if fresh:
            self.note("create", path)
        return number

    def fsync(self, number: int) -> None:
        self._real["fsync"](number)
        self.note("sync", os.readlink(f"/proc/self/fd/{number}"))

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        self._real["rename"](source, target, **options)
        self.note("rename", source, target)

    def unlink(self, path: Any, **options: Any) -> None:
        self._real["unlink"](path, **options)
        self.note("unlink", path)

    def mkdir(self, path: Any, *args: Any, **options: Any) -> None:
        self._real["mkdir"](path, *args, **options)
        self.note("mkdir", path)

    def rmdir(self, path: Any, **options: Any) -> None:
        self._real["rmdir"](path, **options)
        self.note("rmdir", path)

    def rmtree(self, path: Any, *args: Any, **options: Any) -> None:
        folder = Path(path)
        gone = [(file, file.is_dir()) for file in (folder, *sorted(folder.rglob("*")))]
        was_there, self._paused = folder.is_dir(), True
        try:
            self._real["rmtree"](path, *args, **options)
        finally:
            self._paused = False
        for file, is_folder in reversed(gone if was_there else []):
            self.note("rmdir" if is_folder else "unlink", file)

    def serialize_file(self, tensors: Any, file: Any, *args: Any, **options: Any) -> None:
        self._real["serialize_file"](tensors, file, *args, **options)  # compiled: seen afterwards
        self.note("create", file)
        self.note_write(file, Path(file).read_bytes())


PLACES = {
    "open": [(builtins, "open"), (io, "open")],
    "os_open": [(os, "open")],
    "fsync": [(os, "fsync")],
    "rename": [(os, "rename"), (os, "replace")],
    "unlink": [(os, "unlink"), (os, "remove")],
    "mkdir": [(os, "mkdir")],
    "rmdir": [(os, "rmdir")],
    "rmtree": [(shutil, "rmtree")],
    "serialize_file": [(safetensors.torch, "serialize_file")],
}


@contextlib.contextmanager
def recording(root: Path) -> Iterator[list[Operation]]:
    """The operations on files below `root` that the block does, in their order."""
    recorder = Recorder(root)
    with contextlib.ExitStack() as stack:
        for name, places in PLACES.items():
            recorder._real[name] = getattr(*places[0])
            for owner, attribute in places:
                instead = mock.patch.object(owner, attribute, getattr(recorder, name))
                stack.enter_context(instead)
        yield recorder.operations
