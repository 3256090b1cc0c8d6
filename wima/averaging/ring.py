"""The last models, each stored once however many averagers look back at them."""

from __future__ import annotations

import torch
from torch import Tensor

from wima.store import PART, Segments
from wima.vector import Vector

BLOCK = 8  # models that a mapped ring holds in memory before it writes them down


class Ring:
    """The last `length` vectors pushed.

    In memory, which is reserved at once and touched as it fills; or, with `mapped`, in the files of
    a store, from which a vector is read when it is asked for.  dtype: how vectors are kept.
    """

    def __init__(
        self,
        length: int,
        like: Vector,
        *,
        mapped: Segments | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.length, self.dtype, self._mapped = length, dtype or like.dtype, mapped
        self._like = like[:0]
        self._row_bytes = like.numel() * self.dtype.itemsize
        rows = 0 if mapped else length
        self.rows = torch.empty((rows, like.numel()), dtype=self.dtype, device=like.device)
        self.count = 0  # vectors pushed so far
        self._recent: dict[int, Tensor] = {}  # of a mapped ring: those not yet written
        self._where: dict[int, str] = {}  # push -> the segment that holds it

    def push(self, w: Vector) -> None:
        """Store a copy of w over the oldest vector."""
        if self._mapped is not None and self.length:
            self._recent[self.count] = w.to("cpu", self.dtype, copy=True)
        elif self.length:
            self.rows[self.count % self.length].copy_(w)
        self.count += 1
        self._where.pop(self.count - 1 - self.length, None)
        if self._mapped is not None and len(self._recent) >= BLOCK:
            self.save(self._mapped, "ring")

    def ago(self, n: int) -> Vector:
        """The vector of n pushes ago: 1 is the newest, `length` the oldest."""
        if not 1 <= n <= min(self.count, self.length):
            raise IndexError(f"{n} pushes ago: holds {min(self.count, self.length)} vectors.")
        return self._pushed(self.count - n).to(self._like)

    def kept(self, w: Vector) -> Vector:
        """w as the ring will give it back."""
        return w if self.dtype == w.dtype else w.to(self.dtype).to(w.dtype)

    def _pushed(self, number: int) -> Tensor:
        if self._mapped is None:
            return self.rows[number % self.length]
        if number in self._recent:
            return self._recent[number]
        return self._mapped.read(self._where[number], str(number))

    def save(self, store: Segments, kind: str) -> list[str]:
        """Write what no segment holds yet; the segments that hold the ring, oldest first."""
        live = range(max(0, self.count - self.length), self.count)
        fresh = [n for n in live if n not in self._where]
        rows = max(1, PART // max(1, self._row_bytes))  # in a segment
        for part in (fresh[k : k + rows] for k in range(0, len(fresh), rows)):
            name = store.write(kind, {str(n): self._pushed(n) for n in part}, part)
            self._where.update((n, name) for n in part)
        self._recent.clear()
        return list(dict.fromkeys(self._where[n] for n in live))

    def load(self, store: Segments, segments: list[str], count: int) -> None:
        """Become the ring that was saved in these segments."""
        self.count = count
        live = range(max(0, count - self.length), count)
        held = {number: name for name in segments for number in store.about(name)}
        self._where = {n: held[n] for n in live}
        if self._mapped is None:
            for n in live:
                self.rows[n % self.length].copy_(store.read(self._where[n], str(n)))
