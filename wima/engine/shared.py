"""Memory that several processes see: unlinked temporary files, handed to children by descriptor.

Nothing is left behind, however a process ends: the system frees the file with its last user.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wima.data.mapped import keep_file


class Handle(NamedTuple):
    """How a child process finds a shared array again."""

    fd: int
    dtype: str
    shape: tuple[int, ...]
    file: str | None = None  # an array that is mapped from a file is mapped again, not copied
    offset: int = 0

    def open(self) -> npt.NDArray[Any]:
        """Map the array into this process."""
        if self.file is not None:
            array = np.memmap(self.file, np.dtype(self.dtype), "c", self.offset, self.shape)
            keep_file(array)
            return array
        count = prod(self.shape)
        if count == 0:
            return np.empty(self.shape, np.dtype(self.dtype))
        memory = mmap.mmap(self.fd, count * np.dtype(self.dtype).itemsize)
        return np.frombuffer(memory, np.dtype(self.dtype), count).reshape(self.shape)


class Shared:
    """Shared arrays of one parent process and the children it starts."""

    def __init__(self) -> None:
        self._files: list[Any] = []

    @property
    def descriptors(self) -> list[int]:
        """What children must inherit."""
        return [file.fileno() for file in self._files]

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Handle:
        """A new array of zeros."""
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (open as long as this object)
        file.truncate(max(1, prod(shape) * np.dtype(dtype).itemsize))
        self._files.append(file)
        return Handle(file.fileno(), np.dtype(dtype).str, tuple(shape))

    def share(self, array: npt.NDArray[Any]) -> Handle:
        """An array that children can map: a copy, or the file that it is mapped from itself."""
        whole = isinstance(getattr(array, "base", None), mmap.mmap) and array.flags.c_contiguous
        if isinstance(array, np.memmap) and array.filename and whole:
            shape, file = tuple(array.shape), str(array.filename)
            return Handle(-1, array.dtype.str, shape, file, array.offset)
        handle = self.allocate(array.shape, array.dtype)
        if array.size:
            handle.open()[...] = array
        return handle

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
