"""Mini-batches of a client's visit, a function of (seed, round, client)."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wima.core.randomness import rng
from wima.data.federated import FederatedData
from wima.data.local_sgd import LocalSGD as LocalSGD
from wima.data.mapped import as_tensor, read_rows


class Batch(NamedTuple):
    """Examples, and the address of their randomness (dropout, augmentation).

    Examples:
        >>> import torch, wima
        >>> batch = wima.Batch(x=torch.ones(2, 3), y=torch.tensor([0, 1]))
        >>> batch.address
        (0,)
    """

    x: Tensor
    y: Tensor
    address: tuple[int, ...] = (0,)


def batches(
    data: FederatedData, client: int, sgd: LocalSGD, seed: int, t: int, share: float = 1.0
) -> Iterator[Batch]:
    """The mini-batches of a client's visit in round t, or the first share of them."""
    x, y = tensors(data, client)
    plan = sgd.plan(len(x), rng("batches", seed, t, client))
    plan = plan[: shortened(len(plan), share)]
    # Gathered once, and by torch: it aligns memory in the same way in every process, which keeps
    # the bits equal.
    chosen = torch.from_numpy(np.concatenate(plan))
    sizes = [len(index) for index in plan]
    pairs = zip(torch.split(x[chosen], sizes), torch.split(y[chosen], sizes), strict=True)
    for k, (x_k, y_k) in enumerate(pairs):
        yield Batch(x_k, y_k, (seed, t, client, k))


def everything(
    data: FederatedData, client: int, seed: int, t: int, size: int = 512
) -> Iterator[Batch]:
    """All of a client's examples once, in order, in pieces that fit into memory."""
    x, y = tensors(data, client)
    for k, start in enumerate(range(0, len(x), size)):
        piece = slice(start, start + size)
        yield Batch(x[piece].clone(), y[piece].clone(), (seed, t, client, 2**31 + k))


def tensors(data: FederatedData, client: int) -> tuple[Tensor, Tensor]:
    """A client's arrays as torch tensors, without a copy if they are in memory."""
    x, y = (read_rows(rows) for rows in data.client(client))
    return as_tensor(x), as_tensor(y)


def shortened(steps: int, share: float) -> int:
    """How many of its steps a client takes."""
    return max(1, ceil(share * steps)) if share < 1 else steps
