"""Memory shared by processes: unlinked temporary files, inherited by children as descriptors."""

from __future__ import annotations

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

from wima.algorithms.base import Visit
from wima.core.errors import RunError, check
from wima.core.machine import reserve
from wima.core.vector import Vector
from wima.data.federated import keep_file
from wima.simulation.local import Problem, Solved, fields_of, problem_of, solved, vectors_of
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


_NUMPY = {torch.float32: "float32", torch.float64: "float64"}


class SlotHandles(NamedTuple):
    """How a worker finds the slots."""

    w: Handle
    start: Handle
    shift: Handle
    end: Handle
    gradient: Handle
    path_gradient: Handle
    models: Handle  # to evaluate


class Slots:
    """Rows for problems and solutions.  Messages carry numbers; vectors are exchanged here."""

    def __init__(self, handles: SlotHandles) -> None:
        self.w, self.start, self.shift, self.end, self.gradient, self.path_gradient, self.models = (
            torch.from_numpy(handle.open()) for handle in handles
        )

    def put(self, slot: int, problem: Problem) -> dict[str, Any]:
        """Write a problem; return the message for the worker."""
        for name, vector in vectors_of(problem).items():
            (self.start if name == "start" else self.shift)[slot].copy_(vector)
        return {"slot": slot, **fields_of(problem)}

    def get(self, message: dict[str, Any]) -> Problem:
        """On the worker: the problem of a message."""
        slot = message["slot"]
        vectors = {"start": self.start[slot], "shift": self.shift[slot]}
        return problem_of(message, self.w, len(vectors["start"]), vectors)

    def put_solved(self, slot: int, problem: Problem, visit: Visit, rest: Vector) -> None:
        """On the worker: write what was computed."""
        if problem.local is not None:
            trained = len(visit.end)
            self.end[slot, :trained].copy_(visit.end)
            self.end[slot, trained:].copy_(rest)
        if visit.gradient is not None:
            self.gradient[slot].copy_(visit.gradient)
        if visit.path_gradient is not None:
            self.path_gradient[slot].copy_(visit.path_gradient)

    def get_solved(self, slot: int, problem: Problem, steps: int) -> Solved:
        """A copy of what a worker wrote."""
        end = problem.w if problem.local is None else self.end[slot].clone()
        gradient = self.gradient[slot].clone() if problem.full_gradient else None
        path = self.path_gradient[slot].clone() if problem.path_gradient else None
        return solved(problem, end, steps, gradient, path)


def allocate(shared: Shared, slots: int, models: int, w: Vector, setup: Setup) -> SlotHandles:
    """Memory for the slots, and for gradients if the algorithm requests them."""
    check(
        w.dtype in _NUMPY,
        f"engine 'processes' takes models in float32 or float64, got {w.dtype}; use 'serial'.",
    )
    dtype, d, trained = _NUMPY[w.dtype], len(w), len(w[: setup.trained])
    full = slots if setup.algorithm.full_gradient != "none" else 0
    path = slots if setup.algorithm.path_gradient else 0
    return SlotHandles(
        w=shared.allocate((d,), dtype),
        start=shared.allocate((slots, trained), dtype),
        shift=shared.allocate((slots, trained), dtype),
        end=shared.allocate((slots, d), dtype),
        gradient=shared.allocate((full, trained), dtype),
        path_gradient=shared.allocate((path, trained), dtype),
        models=shared.allocate((models, d), dtype),
    )
