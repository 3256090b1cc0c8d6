"""The mean of saved checkpoints, computed and written piece by piece.

A group of pieces is read from every file, oldest first, summed in float64 and written, before the
next group is read.  So memory does not grow with the model, and at most one file is open at a time.
In .npz files, tensors are read and summed whole, since they may be compressed.
"""

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from wima.core.errors import check, check_count, check_range
from wima.model_files.read import ENDINGS, TORCH, open_checkpoint
from wima.model_files.tensors import FLOATING, STORED, Array, Spec, decode, encode
from wima.storage.files import new_file

PIECE = 2**18  # numbers read at once: they fit into a processor's cache
GROUP = 2**22  # numbers summed at a time: 32 MB in float64
# Paths that lead out of the folder in which an archive is unpacked.
OUTSIDE = re.compile(r"^$|^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)")


@dataclass(frozen=True)
class Window:
    """The mean of the last `window` checkpoints, or of all if there are fewer.

    The operations and their order are those of `WIMA` until its window is full.
    """

    window: int = 100

    def __post_init__(self) -> None:
        check_count("--window", self.window)

    @property
    def name(self) -> str:
        return "plain" if self.window == 1 else f"W = {self.window}"

    @property
    def option(self) -> str:
        """The option of `wima average` that selects it."""
        return f"--window {self.window}"

    @property
    def span(self) -> float:
        """The number of checkpoints averaged."""
        return float(self.window)

    def newest(self, files: Sequence[Path]) -> Sequence[Path]:
        """The files that are averaged, oldest first."""
        return files[-self.window :]

    def add(self, total: Array, x: Array, seen: int) -> None:
        """Add the next checkpoint; `seen` were added before it."""
        total += x

    def value(self, total: Array, seen: int) -> Array:
        """The average of the checkpoints added."""
        return total / seen


@dataclass(frozen=True)
class Decay:
    """e <- decay * e + (1 - decay) * w over all checkpoints, from the first one."""

    decay: float

    def __post_init__(self) -> None:
        check_range("--ema", self.decay, least=0, below=1)

    @property
    def name(self) -> str:
        return f"EMA {self.decay:g}"

    @property
    def option(self) -> str:
        return f"--ema {self.decay:g}"

    @property
    def span(self) -> float:
        """The window with the same mean age of checkpoints."""
        return (1 + self.decay) / (1 - self.decay)

    def newest(self, files: Sequence[Path]) -> Sequence[Path]:
        return files

    def add(self, total: Array, x: Array, seen: int) -> None:
        total *= self.decay
        total += np.multiply(x, 1 - self.decay if seen else 1, dtype=total.dtype)

    def value(self, total: Array, seen: int) -> Array:
        return total


Rule: TypeAlias = Window | Decay


class Averaged(NamedTuple):
    """What was written."""

    files: list[Path]  # those averaged
    tensors: int
    numbers: int


class Piece(NamedTuple):
    name: str
    begin: int
    end: int


def average_files(
    files: Sequence[str | Path],
    out: str | Path,
    rule: Rule | None = None,
    *,
    part: Sequence[str] = (),
    key: str | None = None,
    force: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> Averaged:
    """Write the average of checkpoints, given oldest first; by default the mean of the last 100.

    Integer tensors are taken from the newest file.  With `part`, so are tensors whose names match
    none of its patterns.

    key: of the weights in PyTorch files.
    progress: called with the completed share.
    """
    out, given, rule = Path(out), [Path(file) for file in files], rule or Window()
    ending = out.suffix.lower()
    wanted = f"--out {out}: expected a name that ends in {', '.join(ENDINGS)}."
    check(ending in ENDINGS, wanted)
    check(len(given) > 0, "Expected at least one checkpoint, got none.")
    twice = out.resolve() in {file.resolve() for file in given}
    check(not twice, f"--out {out} is one of the checkpoints; choose a different name.")
    used = list(rule.newest(given))
    tensors, metadata = _common(used, key)
    for name, spec in tensors.items():
        _check_storable(out, name, spec)
    matching = {n for n in tensors if not part or any(fnmatchcase(n, p) for p in part)}
    averaged = {name for name in matching if tensors[name].dtype in FLOATING}
    check(bool(averaged) or not part, f"--part {' '.join(part)} matches no tensor of {used[-1]}.")
    pieces = _average(used, rule, tensors, averaged, key, progress)
    metadata["wima"] = f"{rule.name}: {len(used)} files, {used[0].name} to {used[-1].name}"
    with new_file(out, force) as path:
        if ending == ".safetensors":
            _write_safetensors(path, tensors, pieces, metadata)
        elif ending == ".npz":
            _write_npz(path, tensors, pieces)
        else:
            _write_torch(path, tensors, pieces, used[-1], key)
    return Averaged(used, len(tensors), sum(spec.numel for spec in tensors.values()))


def _check_storable(out: Path, name: str, spec: Spec) -> None:
    """Refuse what the format cannot store, and names that would unpack outside of the folder."""
    clean = name.isprintable() and name != "__metadata__"
    if out.suffix.lower() == ".npz":
        clean = clean and not OUTSIDE.search(name)
        brain = f".npz cannot store {name!r}, which is bfloat16; use another format."
        check(spec.dtype != "BF16", brain)
    check(clean, f"--out {out}: the tensor name {name!r:.80} cannot be written; rename it.")


def _common(files: Sequence[Path], key: str | None) -> tuple[dict[str, Spec], dict[str, str]]:
    """The tensors, which must be the same in all files, and the metadata of the newest."""
    with closing(open_checkpoint(files[-1], key)) as newest:
        # Wide dtypes first, as in safetensors, so that all numbers in the file are aligned.
        order = sorted(newest.tensors.items(), key=lambda t: (-STORED[t[1].dtype].itemsize, t[0]))
        expected, metadata = dict(order), dict(newest.metadata)
    check(bool(expected), f"{files[-1]} holds no tensors.")
    there, same = files[-1], "expected checkpoints of the same model."
    for file in files[:-1]:
        with closing(open_checkpoint(file, key)) as checkpoint:
            tensors = checkpoint.tensors
        lacks = _some(expected.keys() - tensors.keys())
        has = _some(tensors.keys() - expected.keys())
        check(not lacks, f"{file} lacks {lacks}, which {there} has; {same}")
        check(not has, f"{file} has {has}, which {there} lacks; {same}")
        for name, spec in tensors.items():
            for what, got, wanted in zip(Spec._fields, spec, expected[name], strict=True):
                but = f"but {wanted} in {there}; {same}"
                check(got == wanted, f"{file}: tensor {name!r} has {what} {got}, {but}")
    return expected, metadata


def _some(names: set[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, sorted(names)[:3])) + more


def _groups(tensors: Mapping[str, Spec], whole: bool) -> Iterator[list[Piece]]:
    """The pieces of all tensors in order, in groups of limited size, or of whole tensors."""
    group: list[Piece] = []
    size = 0
    for name, spec in tensors.items():
        for begin in range(0, spec.numel, PIECE):
            group.append(Piece(name, begin, min(begin + PIECE, spec.numel)))
            size += group[-1].end - begin
            if size >= GROUP and not (whole and group[-1].end < spec.numel):
                yield group
                group, size = [], 0
    if group:
        yield group


def _average(
    files: Sequence[Path],
    rule: Rule,
    tensors: Mapping[str, Spec],
    averaged: set[str],
    key: str | None,
    progress: Callable[[float], None],
) -> Iterator[Array]:
    """The numbers of all tensors as they are stored, piece by piece.

    Those of tensors that are not in `averaged` are the newest.
    """
    groups = list(_groups(tensors, whole=any(file.suffix.lower() == ".npz" for file in files)))
    for done, group in enumerate(groups):
        totals = {p: tensors[p.name].zeros(p.end - p.begin) for p in group if p.name in averaged}
        newest: dict[Piece, Array] = {}
        for seen, file in enumerate(files):
            # Infinities and NaN are kept, as in the training loop.
            with closing(open_checkpoint(file, key)) as checkpoint, np.errstate(all="ignore"):
                for piece, total in totals.items():
                    x = decode(checkpoint.read(*piece), tensors[piece.name].dtype)
                    rule.add(total, x, seen)
                if file == files[-1]:
                    newest = {p: checkpoint.read(*p) for p in group if p not in totals}
            progress((done + (seen + 1) / len(files)) / len(groups))
        for piece in group:
            numbers = newest.get(piece)
            if numbers is None:
                with np.errstate(all="ignore"):
                    value = rule.value(totals.pop(piece), len(files))
                    numbers = encode(value, tensors[piece.name].dtype)
            yield numbers


def _write_safetensors(
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


def _write_npz(path: Path, tensors: Mapping[str, Spec], pieces: Iterable[Array]) -> None:
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


def _write_torch(
    path: Path, tensors: Mapping[str, Spec], pieces: Iterable[Array], like: Path, key: str | None
) -> None:
    """Write the numbers to a file and map it, since torch.save needs all tensors at once.

    like: everything except the weights, which are at `key`, is copied from it if it is PyTorch's.
    """
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
