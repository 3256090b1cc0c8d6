"""Memory shared by processes: unlinked temporary files, inherited by children as descriptors."""

import contextlib
import errno
import mmap
import os
import tempfile
from math import prod
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from wima.core.errors import RunError, check
from wima.core.machine import reserve
from wima.core.vector import Vector
from wima.data.federated import keep_file
from wima.simulation.round import Setup

MEMORY = "/dev/shm"


class Handle(NamedTuple):
    """How a child process finds a shared array."""

    fd: int
    dtype: str
    shape: tuple[int, ...]
    file: str | None = None  # an array mapped from a file is mapped again, not copied
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
    """Arrays shared by a parent process and its children."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors that children must inherit."""
        return [file.fileno() for file in self._files]

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Handle:
        """A new array of zeros."""
        file = _file(max(1, prod(shape) * np.dtype(dtype).itemsize))
        self._files.append(file)
        return Handle(file.fileno(), np.dtype(dtype).str, tuple(shape))

    def share(self, array: npt.NDArray[Any]) -> Handle:
        """Make an array available to children: as a copy, or as the file it is mapped from."""
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


def _file(size: int) -> IO[bytes]:
    """An unnamed file of this size, in memory if it fits."""
    folders, reasons = [MEMORY, tempfile.gettempdir()], []
    for folder in filter(os.path.isdir, folders):
        try:
            return _reserved(folder, size)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise RunError(
        f"engine 'processes' needs a temporary file of {size / 1e6:,.0f} MB, and there is not "
        f"enough space ({'; '.join(reasons)}). Set TMPDIR to a folder with more space, or use "
        "engine 'serial'."
    )


def _reserved(folder: str, size: int) -> IO[bytes]:
    disk = os.statvfs(folder)
    # Check first: a reservation that fails would take all free memory for a moment.
    if disk.f_bavail * disk.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        reserve(file.fileno(), size)
        stack.pop_all()  # it stays open
        return file


DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Slots:
    """Rows for vectors: w, and by slot those of problems, visits and models to evaluate."""

    def __init__(self, handles: dict[str, Handle]) -> None:
        self.rows = {name: torch.from_numpy(handle.open()) for name, handle in handles.items()}

    def put(self, slot: int, vectors: dict[str, Vector]) -> None:
        for name, vector in vectors.items():
            self.rows[name][slot].copy_(vector)

    def get(self, slot: int, names: list[str]) -> dict[str, Vector]:
        """Views, which the next `put` overwrites."""
        return {name: self.rows[name][slot] for name in names}


def allocate(shared: Shared, slots: int, models: int, w: Vector, setup: Setup) -> dict[str, Handle]:
    """Memory for `Slots`, with rows for gradients if the algorithm requests them."""
    check(
        w.dtype in DTYPES,
        f"engine 'processes' takes models in float32 or float64, got {w.dtype}; use 'serial'.",
    )
    trained = len(w[: setup.trained])
    shapes: dict[str, tuple[int, ...]] = {
        "w": (len(w),),
        "start": (slots, trained),
        "shift": (slots, trained),
        "end": (slots, trained),
        "rest": (slots, len(w) - trained),
        "gradient": (slots if setup.algorithm.full_gradient != "none" else 0, trained),
        "path_gradient": (slots if setup.algorithm.path_gradient else 0, trained),
        "models": (models, len(w)),
    }
    return {name: shared.allocate(shape, DTYPES[w.dtype]) for name, shape in shapes.items()}
