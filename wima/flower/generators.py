"""The global generators of Python, NumPy and torch, which Flower apps draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from wima.core.randomness import torch_seed


def seed_all(stream: str, *address: int) -> None:
    """Seed the global generators at this address."""
    seed = torch_seed(stream, *address)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 70 times as long
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the global generators on exit, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
