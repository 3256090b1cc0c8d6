"""A disk on which operations are played back, and what a power cut leaves of it.

`fsync` makes the bytes of a file last, `fsync` of a folder the names in it.  What was not synced
may be there, be lost, or, as with ext4, have its length but zeros for bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.lab.recorder import Operation

Tree = dict[str, bytes | None]  # path -> content; None for a folder
WAYS = ("killed", "zeros", "cut", "forgotten")


class File:
    """Bytes, and those of them that last."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.lasting = bytearray(data), bytes(data)


class Folder:
    """Names, and those of them that last."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.lasting: dict[str, File | Folder] = {}


class Disk:
    """The files below a folder.  At first all of them last."""

    def __init__(self, tree: Tree | None = None) -> None:
        self.root = Folder()
        for path, content in (tree or {}).items():
            self._folder(path).names[_name(path)] = Folder() if content is None else File(content)
            self._folder(path).lasting = dict(self._folder(path).names)

    def _at(self, path: str) -> File | Folder:
        place: File | Folder = self.root
        for name in PurePosixPath(path).parts:
            assert isinstance(place, Folder)
            place = place.names[name]
        return place

    def _folder(self, path: str) -> Folder:
        """The folder that holds the path."""
        folder = self._at(str(PurePosixPath(path).parent))
        assert isinstance(folder, Folder)
        return folder

    def play(self, operation: Operation) -> None:
        kind, path, offset, data, target = operation
        if kind == "sync":
            synced = self._at(path)
            synced.lasting = bytes(synced.data) if isinstance(synced, File) else dict(synced.names)
            return
        names = self._folder(path).names
        if kind == "mkdir":
            names[_name(path)] = Folder()
        elif kind == "create" and _name(path) not in names:
            names[_name(path)] = File()
        elif kind in ("unlink", "rmdir"):
            del names[_name(path)]
        elif kind == "rename":
            self._folder(target).names[_name(target)] = names.pop(_name(path))
        else:
            file = names[_name(path)]
            assert isinstance(file, File)
            if kind == "write":
                file.data[offset : offset + len(data)] = data
            else:  # create of what is there, or truncate
                del file.data[offset:]

    def left(self, way: str) -> Tree:
        """What is found if the process is killed here, or the power fails, in one of these ways."""
        return dict(_walk(self.root, way, ""))


def _walk(folder: Folder, way: str, path: str) -> Iterator[tuple[str, bytes | None]]:
    names = folder.lasting if way == "forgotten" else folder.names
    for name, child in sorted(names.items()):
        if isinstance(child, Folder):
            yield f"{path}{name}", None
            yield from _walk(child, way, f"{path}{name}/")
        elif way == "killed":
            yield f"{path}{name}", bytes(child.data)
        elif way == "zeros":
            yield f"{path}{name}", child.lasting.ljust(len(child.data), b"\0")
        else:
            yield f"{path}{name}", child.lasting


def _name(path: str) -> str:
    return PurePosixPath(path).name


def read_tree(root: Path) -> Tree:
    files = sorted(root.rglob("*"))
    return {str(f.relative_to(root)): None if f.is_dir() else f.read_bytes() for f in files}


def write_tree(tree: Tree, root: Path) -> None:
    """Let the folder hold this tree, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def trees(operations: list[Operation], before: Tree) -> Iterator[tuple[str, Tree]]:
    """After each operation, what may be found, each tree once; with its name."""
    disk, seen = Disk(before), set[int]()
    for number, operation in enumerate(operations, 1):
        disk.play(operation)
        for way in WAYS:
            tree = disk.left(way)
            key = hash(tuple(tree.items()))
            if key not in seen:
                seen.add(key)
                yield f"{number} {way}", tree
