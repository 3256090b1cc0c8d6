"""Selects checkpoints and puts them in order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wima.core.checks import check_count, check_one_of
from wima.core.errors import check
from wima.storage.reading import check_file

SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
IN_FOLDER = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "model.safetensors",
    "pytorch_model.bin",
)


def _by_number(path: Path) -> tuple[list[int | str], str]:
    """step_9 before step_10: runs of digits count as numbers."""
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
    """The selected checkpoints, oldest first: the `last` ones, and of them each `every`-th.

    names: files, folders as Hugging Face writes them, or patterns with * ? [ ].  The newest
    checkpoint is always taken; every=3 takes the one three before it, and so on.
    """
    check_one_of("--order", order, tuple(ORDERS))
    check_count("--every", every)
    found: dict[Path, Path] = {}  # a file that is named twice counts once
    for file in (file for name in names for file in _matches(name)):
        check_file(file)
        found.setdefault(file.resolve(), file)
    files = sorted(found.values(), key=ORDERS[order])
    if last is not None:
        check_count("--last", last)
        files = files[-last:]
    return files[::-1][::every][::-1]


def _matches(name: str) -> list[Path]:
    if os.path.exists(name):
        return [_file(Path(name))]
    check(glob.has_magic(name), f"Cannot read {name}: there is no such file.")
    found = glob.glob(name, recursive=True)
    check(bool(found), f"No file matches {name!r}; expected at least one checkpoint.")
    return [_file(Path(match)) for match in sorted(found)]


def _file(path: Path) -> Path:
    """The file itself, or the model in a folder."""
    check(
        not SHARD.search(path.name),
        f"{path} is one part of a model in several files; give its index instead, "
        "such as model.safetensors.index.json, or its folder.",
    )
    if not os.path.isdir(path):
        return path
    inside = [path / name for name in IN_FOLDER if (path / name).is_file()]
    check(bool(inside), f"The folder {path} holds none of {', '.join(IN_FOLDER)}.")
    return inside[0]
