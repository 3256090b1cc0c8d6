"""Writes a model piece by piece, so that it is never in memory as a whole."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wima.core.errors import check
from wima.model_files.read import ENDINGS, TORCH
from wima.model_files.tensors import STORED, Array, Spec
from wima.storage.files import new_file

# Paths that lead out of the folder in which an archive is unpacked.
OUTSIDE = re.compile(r"^$|^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)")


class Content(NamedTuple):
    """What to write; `pieces` are the numbers of the tensors, in order."""

    tensors: Mapping[str, Spec]
    metadata: Mapping[str, str]
    pieces: Iterable[Array]
    like: Path  # a PyTorch output copies everything except the weights from this file
    key: str | None = None


def in_file_order(tensors: Mapping[str, Spec]) -> dict[str, Spec]:
    """Wide dtypes first, as in safetensors, so that all numbers in the file are aligned."""
    return dict(sorted(tensors.items(), key=lambda t: (-STORED[t[1].dtype].itemsize, t[0])))


def check_ending(out: Path) -> None:
    known = out.suffix.lower() in ENDINGS
    check(known, f"--out {out}: expected a name that ends in {', '.join(ENDINGS)}.")


def write(out: Path, content: Content, force: bool = False) -> None:
    """Write a file in the format given by its suffix; it is complete or absent."""
    check_ending(out)
    for name in content.tensors:
        _check_name(out, name)
    kinds: dict[str, Callable[[Path, Content], None]] = {".safetensors": _safetensors, ".npz": _npz}
    with new_file(out, force) as fresh:
        kinds.get(out.suffix.lower(), _torch)(fresh, content)


def _check_name(out: Path, name: str) -> None:
    """Refuse names that the format cannot store, or that would unpack outside of the folder."""
    clean = name.isprintable() and name != "__metadata__"
    if out.suffix.lower() == ".npz":
        clean = clean and not OUTSIDE.search(name)
    check(clean, f"--out {out}: the tensor name {name!r:.80} cannot be written; rename it.")


def _safetensors(path: Path, content: Content) -> None:
    header: dict[str, object] = {"__metadata__": dict(content.metadata)}
    end = 0
    for name, spec in content.tensors.items():
        begin, end = end, end + spec.nbytes
        about = {"dtype": spec.dtype, "shape": list(spec.shape)}
        header[name] = {**about, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for numbers in content.pieces:
            file.write(numbers.data)


def _npz(path: Path, content: Content) -> None:
    for name, spec in content.tensors.items():
        check(
            spec.dtype != "BF16",
            f".npz cannot store {name!r}, which is bfloat16; use another format.",
        )
    pieces = iter(content.pieces)
    with zipfile.ZipFile(path, "w") as archive:
        for name, spec in content.tensors.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                dtype = np.lib.format.dtype_to_descr(STORED[spec.dtype])
                about = {"descr": dtype, "fortran_order": False, "shape": spec.shape}
                np.lib.format.write_array_header_1_0(file, about)
                written = 0
                while written < spec.numel:
                    numbers = next(pieces)
                    file.write(numbers.data)
                    written += len(numbers)


def _torch(path: Path, content: Content) -> None:
    """Write the numbers to a file and map it, since torch.save needs all tensors at once."""
    import torch

    from wima.model_files.torchfile import as_tensors, replaced

    numbers = path.with_name(f"{path.name}.numbers")
    try:
        with numbers.open("wb") as file:
            for piece in content.pieces:
                file.write(piece.data)
        size = numbers.stat().st_size
        data = np.asarray(np.memmap(numbers, np.uint8, "c")) if size else np.zeros(0, np.uint8)
        tensors = as_tensors(data, content.tensors)
        like = content.like.suffix.lower() in TORCH
        torch.save(replaced(content.like, content.key, tensors) if like else tensors, path)
    except RuntimeError as error:  # from torch's writer if the disk is full
        raise OSError(str(error).partition("\n")[0]) from error
    finally:
        numbers.unlink(missing_ok=True)
