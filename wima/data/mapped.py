"""Arrays that are mapped from files: read-only for users, without a trace in memory once read."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

    from wima.data.federated import FederatedData

LARGE = 64 * 2**20  # bytes; smaller arrays may stay in memory whole
AROUND = 2 * 2**20  # bytes: Linux maps at most so much around an address that is read, aligned


def open_mapped(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Map an .npy file; writing into the array is an error, since nobody else would see it."""
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array  # type: ignore[no-any-return]


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """An array as a torch tensor without a copy; torch only reads it."""
    import torch

    view = array.view(np.ndarray)
    if isinstance(array, np.memmap) and not view.flags.writeable:
        view.flags.writeable = True  # torch would warn; the mapping is copy-on-write
    return torch.from_numpy(view)


def release(data: FederatedData, client: int) -> None:
    """Let go of the pages that hold a client's examples, if they are mapped from a large file.

    Otherwise every client that was ever visited stays resident, with what Linux maps around it:
    5,000 visits among a million clients took 460 MB.  A later read maps them again.
    """
    for rows in data.client(client):
        _release(rows)


def _release(rows: npt.NDArray[Any]) -> None:
    memory = getattr(rows, "_mmap", None)
    if not isinstance(rows, np.memmap) or memory is None or not rows.size or len(memory) < LARGE:
        return
    origin, begin = np.frombuffer(memory, np.uint8).ctypes.data, rows.ctypes.data
    first = max(0, begin - begin % AROUND - origin)
    end = begin + rows.nbytes
    last = min(len(memory), end + -end % AROUND - origin)
    memory.madvise(mmap.MADV_DONTNEED, first, last - first)
