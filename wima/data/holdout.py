"""Hold out a share of every client's examples, to evaluate models on that client."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wima.core.checks import check_range
from wima.core.errors import check
from wima.core.randomness import rng
from wima.data.federated import Array, FederatedData


class HeldOut(NamedTuple):
    """The remaining training data, and the held-out examples with the client of each."""

    train: FederatedData
    x: Array
    y: Array
    clients: Array


def hold_out(data: FederatedData, share: float, seed: int = 0) -> HeldOut:
    """Split each client's examples at random; at least one is kept and one held out."""
    check_range("client_test", share, above=0, below=1)
    sizes, least = data.sizes, int(np.argmin(data.sizes))
    check(
        sizes[least] > 1,
        f"client_test holds out examples of every client, but client {least} has only one. Leave "
        "out such clients.",
    )
    owner = np.repeat(np.arange(data.num_clients), sizes)
    shuffled = np.lexsort((rng("clients", seed, 1).random(len(owner)), owner))  # within clients
    place = np.arange(len(owner)) - data.offsets[:-1][owner]
    held = np.zeros(len(owner), bool)
    held[shuffled[place < np.clip(np.rint(share * sizes), 1, sizes - 1)[owner]]] = True
    counts = np.bincount(owner[~held], minlength=data.num_clients)
    offsets = np.append(0, np.cumsum(counts))
    train = FederatedData(data.x[~held], data.y[~held], offsets, data.names, data.classes)
    return HeldOut(train, data.x[held], data.y[held], owner[held])
