"""The last models, each stored once however many averagers look back at them."""

from __future__ import annotations

import torch

from wima.vector import Vector


class Ring:
    """The last `length` vectors pushed.  Memory is reserved at once and touched as it fills."""

    def __init__(self, length: int, like: Vector) -> None:
        self.rows = torch.empty((length, like.numel()), dtype=like.dtype, device=like.device)
        self.count = 0  # vectors pushed so far

    def push(self, w: Vector) -> None:
        """Store a copy of w over the oldest vector."""
        if len(self.rows):
            self.rows[self.count % len(self.rows)].copy_(w)
        self.count += 1

    def ago(self, n: int) -> Vector:
        """The vector of n pushes ago: 1 is the newest, `length` the oldest."""
        if not 1 <= n <= min(self.count, len(self.rows)):
            raise IndexError(f"{n} pushes ago: holds {min(self.count, len(self.rows))} vectors.")
        return self.rows[(self.count - n) % len(self.rows)]
