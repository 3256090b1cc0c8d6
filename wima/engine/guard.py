"""Catching hooks that write to their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wima.core.errors import UsageError


def vectors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from vectors(branch)


@contextmanager
def untouched(*arguments: Any) -> Iterator[None]:
    """Raise if a tensor among the arguments is written to inside the block."""
    # torch has no read-only tensors; it counts in-place writes instead.
    before = [(tensor, tensor._version) for tensor in vectors(arguments)]
    yield
    for tensor, version in before:
        if tensor._version != version:
            raise UsageError(
                "the hook changed one of its arguments in place; hooks must return new vectors "
                "(write `c = c + d`, not `c += d`)."
            )
