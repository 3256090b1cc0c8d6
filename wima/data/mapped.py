"""Arrays mapped from files: read-only for users, not kept in memory after they are read.

In a large file, a client's rows are read from the file itself: 6 µs for 4 kB, while reading through
the mapping takes 34 µs and leaves up to 2 MB around the rows resident.  (That way, 5,000 visits
among a million clients took 460 MB.)
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 64 * 2**20  # bytes; smaller arrays may stay in memory
AROUND = 2 * 2**20  # bytes: the most that Linux maps around an address that is read, aligned
_files: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()  # descriptors


def open_mapped(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Map an .npy file; writing to the array is an error, since it would not change the file."""
    array = np.load(path, mmap_mode="c", allow_pickle=False)
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
