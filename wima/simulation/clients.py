"""What clients remember between visits (SCAFFOLD, FedDyn, AdaBest)."""

import json
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from wima.algorithms.base import State
from wima.core.vector import Vector
from wima.storage.segments import PART, Segments
from wima.storage.states import Json, decode, encode, size

# Bytes per client besides its vectors.  With 16,000 SCAFFOLD clients in files, this class takes
# less than 190, and the header of the open file, with an entry for each vector, takes 640.
OVERHEAD = 1000


class StoredAt(NamedTuple):
    """Where a client's state is on disk."""

    segment: str
    structure: str  # JSON


class ClientMemory:
    """Client -> state, created at the first visit; algorithms without client state store nothing.

    What a round writes takes effect when the round is committed.  States are kept in memory; with a
    `store`, those beyond `budget` bytes go into its files and are read at the client's next visit.
    Vectors are never rounded: otherwise the sums that the server accumulates over rounds
    (SCAFFOLD's c, FedDyn's h) would drift away from the mean of the clients' states.
    """

    def __init__(
        self,
        init: Callable[[Vector], State],
        *,
        store: Segments | None = None,
        budget: float = float("inf"),
    ) -> None:
        self._init, self._store, self._budget = init, store, budget
        self._pending: dict[int, State] = {}
        self._states: dict[int, State] = {}  # in memory
        self._unsaved: set[int] = set()  # those in no segment yet
        self._where: dict[int, StoredAt] = {}
        self._written: dict[str, int] = {}  # segment -> number of clients in it, replaced or not
        self._bytes = 0
        self._like: Vector | None = None  # an empty vector with the model's dtype and device

    def read(self, client: int, w: Vector) -> State:
        """The client's state; an initial one before its first visit."""
        self._like = w[:0]
        if client in self._states:
            return self._states[client]
        if client not in self._where:
            return self._init(w)
        assert self._store is not None
        return self._stored(client, self._store, self._init(w))

    def write(self, client: int, state: State) -> None:
        """Keep the client's state until its next visit, if the round is committed."""
        if state != ():
            self._pending[client] = state

    def commit(self) -> None:
        """The round succeeded: keep what it wrote."""
        limited = self._store is not None and self._budget != float("inf")
        for client, state in self._pending.items():
            if limited:
                self._bytes += size(state) - size(self._states.get(client, ()))
            self._states[client] = state
            self._unsaved.add(client)
        self._pending.clear()
        if self._store is not None and self._bytes > self._budget:
            self.save(self._store)
            self._states.clear()
            self._bytes = 0

    def discard(self) -> None:
        """The round failed: discard what it wrote."""
        self._pending.clear()

    def visited(self) -> dict[int, State]:
        """The states of all clients that have one."""
        if self._like is None:
            return {}
        clients = sorted({*self._states, *self._where})
        return {client: self.read(client, self._like) for client in clients}

    def save(self, store: Segments) -> list[str]:
        """Write the states in no segment yet; return the segments of all states, oldest first."""
        tensors: dict[str, Tensor] = {}
        about: dict[str, Json] = {}
        taken = 0
        for i in [*sorted(self._unsaved), *self._scattered()]:
            state = self._states[i] if i in self._unsaved else self._stored(i, store)
            about[str(i)] = encode(state, str(i), tensors, {})
            taken += size(state)
            if taken >= PART:
                self._place(store.write("clients", tensors, about), about)
                tensors, about, taken = {}, {}, 0
        if about:
            self._place(store.write("clients", tensors, about), about)
        self._unsaved.clear()
        names = sorted({place.segment for place in self._where.values()})
        for name in self._written.keys() - set(names):  # no current state is left in it
            del self._written[name]
            store.drop(name)
        return names

    def _place(self, segment: str, about: dict[str, Json]) -> None:
        """Record what a segment holds; equal structures share one string."""
        places: dict[StoredAt, StoredAt] = {}
        for client, structure in about.items():
            # Without the client's number, which prefixes the names of its tensors in files.
            state = decode(structure, None, lambda _: torch.empty(0), {})
            place = StoredAt(segment, json.dumps(encode(state, "", {}, {})))
            self._where[int(client)] = places.setdefault(place, place)
        self._written[segment] = len(about)

    def _scattered(self) -> list[int]:
        """The clients in segments that are mostly outdated and will be rewritten."""
        live: dict[str, list[int]] = {}
        for client, place in self._where.items():
            if client not in self._unsaved:
                live.setdefault(place.segment, []).append(client)
        few = [name for name in live if 2 * len(live[name]) < self._written[name]]
        return [client for name in few for client in live[name]]

    def _stored(self, client: int, store: Segments, like: State = None) -> State:
        segment, structure = self._where[client]
        tensor = lambda name: store.read(segment, f"{client}{name}")  # noqa: E731
        return decode(json.loads(structure), like, tensor, {})

    def load(self, store: Segments, segments: list[str], w: Vector) -> None:
        """Restore the memory saved in these segments."""
        self._store = store
        for name in segments:
            self._place(name, store.about(name))
        if self._budget == float("inf"):
            like = self._init(w)
            self._states = {i: self._stored(i, store, like) for i in self._where}
