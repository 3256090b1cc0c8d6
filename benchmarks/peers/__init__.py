"""One script per simulator: each trains the same workload and speaks the protocol of `turns`."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """How a peer is started: python -m benchmarks.peers.<script> <workload> <arguments>."""

    script: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None  # <environment>.txt lists its packages; None: ours


PEERS = {
    "ours-auto": Peer("ours", ("auto",)),
    "ours-batched": Peer("ours", ("batched",)),
    "ours-serial": Peer("ours", ("serial",)),
    "ours-processes": Peer("ours", ("processes",)),
    "bare": Peer("bare"),
    "naive": Peer("naive"),
    "pfl1": Peer("pfl", ("1",), "pfl"),
    "pfl2": Peer("pfl", ("2",), "pfl"),
    "flower": Peer("flower", ("loader",), "flower"),
    "flower-tensors": Peer("flower", ("tensors",), "flower"),
    "fedlab": Peer("fedlab", (), "fedlab"),
    "fluke": Peer("fluke", (), "fluke"),
    "fedjax": Peer("fedjax", ("own",), "fedjax"),
    "fedjax-scan": Peer("fedjax", ("scan",), "fedjax"),
}
