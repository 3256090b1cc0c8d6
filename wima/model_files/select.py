"""Selects and sorts checkpoints."""

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

    names: files, folders as written by Hugging Face, or patterns with * ? [ ].  The newest
    checkpoint is always selected; with every=3, then the third before it, and so on.
    """
    check_one_of("--order", order, tuple(ORDERS))
    check_count("--every", every)
    found: dict[Path, Path] = {}  # a file given twice counts once
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
    check(glob.has_magic(name), f"Cannot read {name}: the file does not exist.")
    found = glob.glob(name, recursive=True)
    check(bool(found), f"No file matches {name!r}; expected at least one checkpoint.")
    return [_file(Path(match)) for match in sorted(found)]


def _file(path: Path) -> Path:
    """The file itself, or the model in a folder."""
    check(
        not SHARD.search(path.name),
        f"{path} is one part of a model in several files; expected its index, "
        "such as model.safetensors.index.json, or its folder.",
    )
    if not os.path.isdir(path):
        return path
    inside = [path / name for name in IN_FOLDER if (path / name).is_file()]
    check(bool(inside), f"The folder {path} contains none of {', '.join(IN_FOLDER)}.")
    return inside[0]
