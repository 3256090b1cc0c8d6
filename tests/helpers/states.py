"""States of algorithms: tuples in tuples, with tensors and numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def same(a: object, b: object) -> bool:
    """Equal in classes, lengths and all values, to the bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b
