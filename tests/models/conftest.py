"""Every test of models begins alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """A seed, and one thread: on a busy machine more of them only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
