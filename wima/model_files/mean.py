"""The mean of saved checkpoints, computed piece by piece.

A group of pieces is read from every file, oldest first, summed in float64 and written, before the
next group is read.  So memory does not grow with the model, and at most one file is open at a time.
In .npz files, tensors are read and summed whole, since they may be compressed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from wima.core.errors import check, check_count, check_range
from wima.model_files.read import open_checkpoint
from wima.model_files.tensors import STORED, Array, Spec, decode, encode
from wima.model_files.write import check_ending, write

PIECE = 2**18  # numbers read at once: they fit into a processor's cache
GROUP = 2**22  # numbers summed at a time: 32 MB in float64


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
    check_ending(out)
    check(len(given) > 0, "Expected at least one checkpoint, got none.")
    twice = out.resolve() in {file.resolve() for file in given}
    check(not twice, f"--out {out} is one of the checkpoints; choose a different name.")
    used = list(rule.newest(given))
    tensors, metadata = _common(used, key)
    matching = {n for n in tensors if not part or any(fnmatchcase(n, p) for p in part)}
    averaged = {name for name in matching if tensors[name].floating}
    check(bool(averaged) or not part, f"--part {' '.join(part)} matches no tensor of {used[-1]}.")
    pieces = _average(used, rule, tensors, averaged, key, progress)
    about = f"{rule.name}: {len(used)} files, {used[0].name} to {used[-1].name}"
    metadata["wima"] = about
    write(out, tensors, pieces, metadata=metadata, like=used[-1], key=key, force=force)
    return Averaged(used, len(tensors), sum(spec.numel for spec in tensors.values()))


def _common(files: Sequence[Path], key: str | None) -> tuple[dict[str, Spec], dict[str, str]]:
    """The tensors, which must be the same in all files, and the metadata of the newest."""
    with closing(open_checkpoint(files[-1], key)) as newest:
        # Wide dtypes first, as in safetensors, so that all numbers in the file are aligned.
        order = sorted(newest.tensors.items(), key=lambda t: (-STORED[t[1].dtype].itemsize, t[0]))
        tensors, metadata = dict(order), dict(newest.metadata)
    check(bool(tensors), f"{files[-1]} holds no tensors.")
    for file in files[:-1]:
        with closing(open_checkpoint(file, key)) as checkpoint:
            _compare(file, checkpoint.tensors, files[-1], tensors)
    return tensors, metadata


def _compare(
    file: Path, tensors: Mapping[str, Spec], newest: Path, expected: Mapping[str, Spec]
) -> None:
    """Raise `UsageError` unless a file has the same tensors as the newest one."""
    same = "expected checkpoints of the same model."
    lacks, has = _some(set(expected) - set(tensors)), _some(set(tensors) - set(expected))
    check(not lacks, f"{file} lacks {lacks}, which {newest} has; {same}")
    check(not has, f"{file} has {has}, which {newest} lacks; {same}")
    for name, spec in tensors.items():
        for what, got, there in zip(Spec._fields, spec, expected[name], strict=True):
            message = f"{file}: tensor {name!r} has {what} {got}, but {there} in {newest}; {same}"
            check(got == there, message)


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
