"""Writes a model piece by piece, so that it is never in memory as a whole."""

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from wima.core.errors import check
from wima.model_files.read import ENDINGS, TORCH
from wima.model_files.tensors import STORED, Array, Spec
from wima.storage.files import new_file

# Paths that lead out of the folder in which an archive is unpacked.
OUTSIDE = re.compile(r"^$|^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)")


def check_ending(out: Path) -> None:
    known = out.suffix.lower() in ENDINGS
    check(known, f"--out {out}: expected a name that ends in {', '.join(ENDINGS)}.")


def write(
    out: Path,
    tensors: Mapping[str, Spec],
    pieces: Iterable[Array],
    *,
    metadata: Mapping[str, str],
    like: Path,
    key: str | None = None,
    force: bool = False,
) -> None:
    """Write a file in the format given by its suffix; it is complete or absent.

    pieces: the numbers of the tensors, in order.
    like: a PyTorch output copies everything except the weights, which are at `key`, from this file.
    """
    ending = out.suffix.lower()
    for name, spec in tensors.items():
        clean = name.isprintable() and name != "__metadata__"
        if ending == ".npz":
            clean = clean and not OUTSIDE.search(name)
            brain = f".npz cannot store {name!r}, which is bfloat16; use another format."
            check(spec.dtype != "BF16", brain)
        check(clean, f"--out {out}: the tensor name {name!r:.80} cannot be written; rename it.")
    with new_file(out, force) as path:
        if ending == ".safetensors":
            _safetensors(path, tensors, pieces, metadata)
        elif ending == ".npz":
            _npz(path, tensors, pieces)
        else:
            _torch(path, tensors, pieces, like, key)


def _safetensors(
    path: Path, tensors: Mapping[str, Spec], pieces: Iterable[Array], metadata: Mapping[str, str]
) -> None:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, spec in tensors.items():
        begin, end = end, end + spec.nbytes
        about = {"dtype": spec.dtype, "shape": list(spec.shape)}
        header[name] = {**about, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for numbers in pieces:
            file.write(numbers.data)


def _npz(path: Path, tensors: Mapping[str, Spec], pieces: Iterable[Array]) -> None:
    numbers = iter(pieces)
    with zipfile.ZipFile(path, "w") as archive:
        for name, spec in tensors.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                dtype = np.lib.format.dtype_to_descr(STORED[spec.dtype])
                about = {"descr": dtype, "fortran_order": False, "shape": spec.shape}
                np.lib.format.write_array_header_1_0(file, about)
                written = 0
                while written < spec.numel:
                    piece = next(numbers)
                    file.write(piece.data)
                    written += len(piece)


def _torch(
    path: Path, tensors: Mapping[str, Spec], pieces: Iterable[Array], like: Path, key: str | None
) -> None:
    """Write the numbers to a file and map it, since torch.save needs all tensors at once."""
    import torch

    from wima.model_files.torchfile import replaced

    numbers = path.with_name(f"{path.name}.numbers")
    try:
        with numbers.open("wb") as file:
            for piece in pieces:
                file.write(piece.data)
        size = numbers.stat().st_size
        data = np.asarray(np.memmap(numbers, np.uint8, "c")) if size else np.zeros(0, np.uint8)
        views, begin = {}, 0
        for name, spec in tensors.items():
            view = data[begin : begin + spec.nbytes].view(STORED[spec.dtype])
            # An empty tensor must not share memory with the next one: torch.save may refuse that.
            tensor = torch.from_numpy(view if spec.numel else view.copy())
            tensor = tensor.view(torch.bfloat16) if spec.dtype == "BF16" else tensor
            views[name] = tensor.reshape(spec.shape)
            begin += spec.nbytes
        copied = like.suffix.lower() in TORCH
        torch.save(replaced(like, key, views) if copied else views, path)
    except RuntimeError as error:  # from torch's writer if the disk is full
        raise OSError(str(error).partition("\n")[0]) from error
    finally:
        numbers.unlink(missing_ok=True)
