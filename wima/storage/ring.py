"""The most recent models, each stored once, however many averagers use them."""

import contextlib
import tempfile
from math import inf, prod
from pathlib import Path

import torch
from torch import Tensor

from wima.core.errors import UsageError
from wima.core.machine import memory_available, reserve
from wima.core.vector import Vector
from wima.storage.segments import PART, Segments

BLOCK = 8  # models that a mapped ring buffers in memory before writing them
CACHED = 2**15  # numbers summed at a time, so that the sum stays in the CPU cache


class Ring:
    """The last `length` vectors pushed.

    They are kept in memory, which is reserved up front and touched as it fills; with `folder`, in a
    memory-mapped file there, which is deleted with the ring; with `mapped`, in the files of a
    store, which are read when a vector is needed.  dtype: in which vectors are stored.
    """

    def __init__(
        self,
        length: int,
        like: Vector,
        *,
        mapped: Segments | None = None,
        folder: Path | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.length, self.dtype = length, dtype or like.dtype
        self._like = like.new_empty(0)  # for its dtype and device
        self._size, self._row_bytes = like.numel(), like.numel() * self.dtype.itemsize
        shape = (0 if mapped else length, like.numel())
        if folder is None:
            self.rows = _reserved(shape, self.dtype, like.device)
        else:
            self.rows = _mapped(folder, shape, self.dtype)
        self.count = 0  # vectors pushed so far
        self._recent: dict[int, Tensor] = {}  # in a mapped ring: not yet written
        self._where: dict[int, str] = {}  # push -> the segment of the store that holds it
        self._mapped, self._store = mapped, mapped

    def push(self, w: Vector) -> None:
        """Store a copy of w in place of the oldest vector."""
        if self._mapped is not None and self.length:
            self._recent[self.count] = w.to("cpu", self.dtype, copy=True)
        elif self.length:
            self.place().copy_(w)
        self.advance()

    def place(self) -> Tensor:
        """The slot of the next vector, for callers that write it there themselves."""
        return self.rows[self.count % self.length]

    def advance(self) -> None:
        """Count the vector written to `place()` as pushed."""
        self.count += 1
        oldest = self.count - 1 - self.length
        name = self._where.pop(oldest, None)
        if name is not None and self._where.get(oldest + 1) != name and self._store is not None:
            self._store.drop(name)  # it held no newer vectors
        if self._mapped is not None and len(self._recent) >= BLOCK:
            self.save(self._mapped, "ring")

    def restart(self, count: int) -> None:
        """Drop all vectors; the next one is number `count`."""
        self.count, self._recent, self._where = count, {}, {}

    def ago(self, n: int) -> Vector:
        """The vector pushed n pushes ago: 1 is the newest, `length` the oldest."""
        held = min(self.count, self.length)
        if not 1 <= n <= held:
            raise IndexError(f"No vector from {n} pushes ago: the ring holds {held} vectors.")
        return self._pushed(self.count - n).to(self._like)

    def as_stored(self, w: Vector) -> Vector:
        """w as it would be read back, rounded to the ring's dtype."""
        return w if self.dtype == w.dtype else w.to(self.dtype).to(w.dtype)

    def mean(self, n: int) -> Vector:
        """The mean of the last n vectors, summed in float64, oldest first."""
        total = torch.zeros(self._size, dtype=torch.float64, device=self._like.device)
        for first in range(self.count - n, self.count, BLOCK):
            block = [self._pushed(k) for k in range(first, min(first + BLOCK, self.count))]
            for k in range(0, self._size, CACHED):  # in pieces, without copying whole vectors
                part = total[k : k + CACHED]
                for vector in block:
                    part.add_(vector[k : k + CACHED].to(part.device))
        return total.div_(n).to(self._like)

    def _pushed(self, number: int) -> Tensor:
        if self._mapped is None:
            return self.rows[number % self.length]
        if number in self._recent:
            return self._recent[number]
        return self._mapped.read(self._where[number], str(number))

    def save(self, store: Segments, kind: str) -> list[str]:
        """Write vectors that are in no segment yet; returns the ring's segments, oldest first."""
        if self._mapped is None and store is not self._store:
            self._store, self._where = store, {}
        live = range(max(0, self.count - self.length), self.count)
        fresh = [n for n in live if n not in self._where]
        rows = max(1, PART // max(1, self._row_bytes))  # per segment
        for part in (fresh[k : k + rows] for k in range(0, len(fresh), rows)):
            name = store.write(kind, {str(n): self._pushed(n) for n in part}, part)
            self._where.update((n, name) for n in part)
        self._recent.clear()
        return list(dict.fromkeys(self._where[n] for n in live))

    def load(self, store: Segments, segments: list[str], count: int) -> None:
        """Restore the ring that was saved in these segments."""
        self.count, self._store = count, store
        live = range(max(0, count - self.length), count)
        held = {number: name for name in segments for number in store.about(name)}
        self._where = {n: held[n] for n in live}
        if self._mapped is None:
            for n in live:
                self.rows[n % self.length].copy_(store.read(self._where[n], str(n)))


def _reserved(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate a matrix; raises `UsageError` if there is not enough memory."""
    needed, here = prod(shape) * dtype.itemsize, device.type == "cpu"
    free = memory_available() if here else inf
    if needed <= free:
        with contextlib.suppress(RuntimeError):  # torch's out-of-memory error
            return torch.empty(shape, dtype=dtype, device=device)
    known = f"only {free / 1e9:.1f} GB is" if needed > free else "that much is not"
    raise UsageError(
        f"The last {shape[0]} models need {needed / 1e9:.1f} GB of memory, but {known} free. Keep "
        "them in files (folder= of WindowAverage and ArrayWindow, window_store='files' of runs and "
        "averaged(), storage= of simulate) or in bfloat16, or choose a smaller window."
    )


def _mapped(folder: Path, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """A matrix in an unnamed file, which disappears with it, however the process ends.

    The space is reserved up front: if the disk filled up later, a write would kill the process.
    """
    size = prod(shape)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".window-") as file:
            reserve(file.fileno(), size * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=dtype).view(shape)
    except OSError as error:
        needed = f"{size * dtype.itemsize / 1e9:.1f} GB of past models"
        reason = f"{error.strerror or error}. Choose another folder."
        raise UsageError(f"{folder} cannot hold {needed}: {reason}") from None
