"""A data set split among clients, in memory or mapped from disk, and its test examples."""

from __future__ import annotations

import json
import mmap
import os
import tokenize
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from wima.core.errors import UsageError, check, check_range
from wima.core.randomness import rng
from wima.storage.files import read_text, written

if TYPE_CHECKING:
    from torch import Tensor

    from wima.data.transform import Transform

Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Examples stored client after client: client i has rows offsets[i] to offsets[i + 1].

    Two arrays and the offsets of clients work for three clients or a million, and can be mapped
    from disk.  `names` are the clients' names, if they have any.  With `classes`, labels must be in
    0..classes-1; labels mapped from disk are not checked, so that they need not be read.
    """

    x: Array
    y: Array
    offsets: Ids
    names: Array | Sequence[str] | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        for field in ("x", "y", "offsets"):
            object.__setattr__(self, field, as_array(getattr(self, field), field))
        check(
            self.x.ndim > 0 and self.y.ndim > 0 and len(self.x) == len(self.y),
            "x and y must each have one row per example, got shapes "
            f"{self.x.shape} and {self.y.shape}.",
        )
        if self.names is not None:
            object.__setattr__(self, "names", as_names(self.names).astype(str))
        _check_clients(self.offsets, len(self.x), self.names)
        object.__setattr__(self, "offsets", self.offsets.astype(np.int64))
        if self.classes is not None:
            check(
                is_integer(self.classes) and self.classes > 0,
                f"classes must be a positive integer, got {self.classes!r}.",
            )
            object.__setattr__(self, "classes", int(self.classes))
            if not isinstance(self.y, np.memmap):
                check_labels(self.y, self.classes, "y")

    @classmethod
    def from_arrays(
        cls,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        clients: npt.ArrayLike,
        *,
        classes: int | None = None,
        num_clients: int | None = None,
    ) -> FederatedData:
        """Sort examples by client; `clients[j]` is the client of example j, a number or a name.

        Examples keep their order within a client; those of client number -1 are left out.  Without
        `num_clients`, the clients are those that occur.
        """
        x, y, clients = as_array(x, "x"), as_array(y, "y"), as_names(clients)
        check(
            x.shape[:1] == y.shape[:1] == clients.shape,
            "x, y and clients must each have one row per example, got shapes "
            f"{x.shape}, {y.shape} and {clients.shape}.",
        )
        kept, ids, names = _numbered(clients, num_clients)
        if is_integer(classes):
            check_labels(y, classes, "y", kept)  # before sorting: errors name the caller's index
        rows = kept[np.argsort(ids, kind="stable")]
        if len(rows) < len(x) or np.any(np.diff(rows) != 1):  # if sorted, do not copy
            x, y = x[rows], y[rows]
        sizes = np.bincount(ids, minlength=num_clients or 0)
        return cls(x, y, np.append(0, np.cumsum(sizes)), names, classes)

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        return len(self.x)

    @property
    def sizes(self) -> Ids:
        """The number of examples of each client."""
        return np.diff(self.offsets)

    def size(self, i: int) -> int:
        """The number of examples of client i."""
        rows = self._rows(i)
        return int(rows.stop - rows.start)

    def client(self, i: int) -> tuple[Array, Array]:
        """The examples and labels of client i: views, not copies."""
        rows = self._rows(i)
        return self.x[rows], self.y[rows]

    def _rows(self, i: int) -> slice:
        if not 0 <= i < self.num_clients:  # called for every visit
            raise UsageError(f"client must be a number in 0..{self.num_clients - 1}, got {i}.")
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the data to a new folder, which is either complete or absent."""
        target = Path(folder)
        check(not target.exists(), f"{target} already exists; choose a new folder, or remove it.")
        names = None if self.names is None else np.asarray(self.names).tolist()
        with written(target, folder=True) as draft:
            for field in ("x", "y", "offsets"):
                np.save(draft / f"{field}.npy", getattr(self, field))
            meta = {"names": names, "classes": self.classes}
            (draft / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> FederatedData:
        """Map a saved folder: the arrays are read-only, and read from disk when used."""
        path = Path(folder)
        meta = read_meta(path, "names", "classes")
        x, y, offsets = (open_mapped(path / f"{field}.npy") for field in ("x", "y", "offsets"))
        try:
            return cls(x, y, np.array(offsets), meta["names"], meta["classes"])
        except UsageError as error:
            raise UsageError(f"{path} is damaged: {error}") from None


class Bundle(NamedTuple):
    """A data set ready for training and testing."""

    train: FederatedData
    x_test: Array
    y_test: Array
    classes: int
    transform: Transform | None = None  # turns stored examples into model inputs
    kind: str = "classes"  # "characters": rows of character ids, targets one ahead
    test_clients: Array | None = None  # the client of each test example, -1 for none


class HeldOut(NamedTuple):
    """The remaining training data, and the held-out examples with the client of each."""

    train: FederatedData
    x: Array
    y: Array
    clients: Array


def hold_out(data: FederatedData, share: float, seed: int = 0) -> HeldOut:
    """Split each client's examples at random; at least one is kept and one held out."""
    check_range("client_test", share, above=0, below=1)
    sizes, least = data.sizes, int(np.argmin(data.sizes))
    check(
        sizes[least] > 1,
        f"client_test holds out examples of every client, but client {least} has only one. Leave "
        "out such clients.",
    )
    owner = np.repeat(np.arange(data.num_clients), sizes)
    shuffled = np.lexsort((rng("clients", seed, 1).random(len(owner)), owner))  # within clients
    place = np.arange(len(owner)) - data.offsets[:-1][owner]
    held = np.zeros(len(owner), bool)
    held[shuffled[place < np.clip(np.rint(share * sizes), 1, sizes - 1)[owner]]] = True
    counts = np.bincount(owner[~held], minlength=data.num_clients)
    offsets = np.append(0, np.cumsum(counts))
    train = FederatedData(data.x[~held], data.y[~held], offsets, data.names, data.classes)
    return HeldOut(train, data.x[held], data.y[held], owner[held])


def as_array(values: Any, field: str) -> Array:
    """A list, array or torch tensor as a NumPy array, without a copy if possible."""
    try:
        tensor = hasattr(values, "detach")
        array = values.detach().cpu().numpy() if tensor else np.asanyarray(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{field} must be a plain array: {error}") from None
    fits = array.dtype != object or field == "clients"
    check(fits, f"{field} must be an array of numbers, got Python objects.")
    return array  # type: ignore[no-any-return]


def as_names(clients: npt.ArrayLike) -> npt.NDArray[Any]:
    """One name per example, as an array of integers or of text."""
    names = as_array(clients, "clients")
    check(
        names.ndim == 1 and names.size > 0,
        f"client names must be a non-empty list, one per example, got shape {names.shape}.",
    )
    if names.dtype == object:  # as pandas stores text; a missing name is None or NaN there
        odd = [name for name in names if not isinstance(name, str)]
        check(not odd, f"client names must all be text or all be integers, got {odd[:1]}.")
        names = names.astype(str)
    if names.dtype.kind == "S":  # as HDF5 stores text
        names = np.char.decode(names, "utf-8", "replace")
    check(names.dtype.kind in "iuUT", f"client names must be text or integers, got {names.dtype}.")
    return names


def is_integer(number: object) -> TypeGuard[int]:
    """Whether it is a Python or NumPy integer, not a bool."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def numbered(clients: Array, known: Array) -> Array:
    """The index of each client among those known; -1 if it is not among them."""
    order = np.argsort(known)
    places = order[np.searchsorted(known, clients, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[places] == clients, places, -1)


def check_labels(y: Array, classes: int, field: str, rows: Ids | None = None) -> None:
    """Raise unless class labels are in 0..classes-1; other kinds of targets are not checked."""
    if y.ndim != 1:
        return
    check(y.dtype.kind in "iu", f"{field} must hold integer labels, got {y.dtype}.")
    labels = y if rows is None else y[rows]
    if labels.min() < 0 or labels.max() >= classes:
        at = int(np.argmax((labels < 0) | (labels >= classes)))
        index = at if rows is None else rows[at]
        raise UsageError(
            f"{field} must hold labels in 0..{classes - 1}, got {labels[at]} at index {index}."
        )


def _check_clients(offsets: Array, n: int, names: Array | Sequence[str] | None) -> None:
    """Raise unless the offsets of n examples give every client at least one."""
    check(
        offsets.ndim == 1 and offsets.dtype.kind in "iu",
        f"offsets must be a list of integers, got {offsets.dtype} of shape {offsets.shape}.",
    )
    count, offsets = len(offsets) - 1, offsets.astype(np.int64)
    check(count > 0, "The data has no clients: offsets must have at least two entries.")
    check(offsets[0] == 0, f"offsets must start at 0, got {offsets[0]}.")
    check(offsets[-1] == n, f"offsets must end at the number of examples, {n}, got {offsets[-1]}.")
    if names is not None:
        got = len(names)
        check(got == count, f"names must have one entry per client, {count}, got {got}.")
    i = int(np.argmin(np.diff(offsets)))  # the smallest client
    low, high, name = offsets[i], offsets[i + 1], "" if names is None else f" ({str(names[i])!r})"
    check(low <= high, f"offsets must be increasing, got {low} before {high} at index {i}.")
    check(
        low < high,
        f"client {i}{name} has no examples: every client needs at least one; leave the client out "
        "or lower the number of clients.",
    )


def _numbered(clients: Array, num_clients: int | None) -> tuple[Ids, Ids, Array | None]:
    """The examples to keep, their clients numbered from 0, and the clients' names."""
    if clients.dtype.kind not in "iu":
        check(num_clients is None, "With num_clients, clients must be integers, got text.")
        names, ids = np.unique(clients, return_inverse=True)
        return np.arange(len(clients)), ids.astype(np.int64), names
    wrong, expected = clients < -1, "0 or more"
    if num_clients is not None:
        check(
            is_integer(num_clients) and 1 <= num_clients <= len(clients),
            "num_clients must be a positive integer and at most the number of examples, "
            f"{len(clients)}, got {num_clients!r}.",
        )
        wrong |= clients >= num_clients
        expected = f"in 0..{num_clients - 1}"
    at = int(np.argmax(wrong))
    check(
        not wrong[at],
        f"clients must be {expected}, or -1 for examples to leave out, "
        f"got {clients[at]} at index {at}.",
    )
    kept = np.flatnonzero(clients >= 0)
    check(len(kept) > 0, "The data has no clients: the client of every example is -1.")
    if num_clients is not None:
        return kept, clients[kept].astype(np.int64), None
    names, ids = np.unique(clients[kept], return_inverse=True)
    return kept, ids.astype(np.int64), None if names[-1] == len(names) - 1 else names


def read_meta(folder: Path, *keys: str) -> dict[str, Any]:
    """These entries of a folder's meta.json."""
    path = folder / "meta.json"
    try:
        meta = json.loads(read_text(path))
        return {key: meta[key] for key in keys}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} must be JSON with {' and '.join(keys)}: {error}") from None


LARGE = 64 * 2**20  # bytes; smaller arrays may stay in memory
AROUND = 2 * 2**20  # bytes: the most that Linux maps around an address that is read, aligned
_files: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()  # descriptors


def open_mapped(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Map an .npy file; writing to the array is an error, since it would not change the file."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise UsageError(f"{path} must be an array that numpy.save wrote: {error}") from None
    if isinstance(array, np.memmap):
        array.flags.writeable = False
        keep_file(array)
    return array  # type: ignore[no-any-return]


def keep_file(array: np.memmap[Any, Any]) -> None:
    """Keep the file of a newly mapped array open, if it is large."""
    memory = array.base
    if isinstance(memory, mmap.mmap) and len(memory) >= LARGE and array.filename:
        _files[memory] = number = os.open(array.filename, os.O_RDONLY)
        weakref.finalize(memory, os.close, number)


def read_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows, read from the file if they belong to a large mapped array."""
    memory = getattr(rows, "_mmap", None)
    if not isinstance(rows, np.memmap) or memory is None or memory not in _files:
        return rows
    if not rows.flags.c_contiguous or not rows.size:
        return rows
    first = rows.offset - rows.offset % mmap.ALLOCATIONGRANULARITY  # where the mapping begins
    read = np.empty(rows.shape, rows.dtype)
    there = first + rows.ctypes.data - _address(memory)
    complete = os.preadv(_files[memory], [read.data.cast("B")], there) == rows.nbytes
    return read if complete else rows


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """An array as a torch tensor without a copy; torch only reads it."""
    import torch

    view = array.view(np.ndarray)
    if isinstance(array, np.memmap) and not view.flags.writeable:
        view.flags.writeable = True  # torch would warn; the mapping is copy-on-write
    if view.flags.writeable:
        return torch.from_numpy(view)
    with warnings.catch_warnings():  # of torch, for instance about arrays from pandas
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(view)


def release(rows: npt.NDArray[Any]) -> None:
    """Free the pages of these rows if they are mapped from a large file.

    A later read maps them again.
    """
    memory = getattr(rows, "_mmap", None)
    if memory is None or memory not in _files or not rows.size:
        return
    origin, begin = _address(memory), rows.ctypes.data
    first = max(0, begin - begin % AROUND - origin)
    end = begin + rows.nbytes
    last = min(len(memory), end + -end % AROUND - origin)
    memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)
