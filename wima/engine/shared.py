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


class Handle(NamedTuple):
    """How a child process finds a shared array again."""

    fd: int
    dtype: str
    shape: tuple[int, ...]

    def open(self) -> npt.NDArray[Any]:
        """Map the array into this process."""
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
        """A copy of an array that children can map."""
        handle = self.allocate(array.shape, array.dtype)
        if array.size:
            handle.open()[...] = array
        return handle

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()
