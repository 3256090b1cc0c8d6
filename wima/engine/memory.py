"""What clients remember between visits (SCAFFOLD, FedDyn, AdaBest)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from wima.algorithms.base import State
from wima.core.vector import Vector
from wima.storage.segments import PART, Segments
from wima.storage.states import Json, decode, encode, size


class ClientMemory:
    """Client -> state, made at the first visit; algorithms without one store nothing.

    What a round writes counts when the round is committed.  States are kept in memory; with a
    `store`, what exceeds `budget` bytes goes into its files, from which it is read when a client is
    visited again.  Vectors are never rounded: what a server adds up over the rounds (SCAFFOLD's c,
    FedDyn's h) would drift away from the mean of what its clients remember.
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
        self._fresh: set[int] = set()  # those that no segment holds
        self._where: dict[int, tuple[str, Json]] = {}  # client -> segment, structure
        self._bytes = 0
        self._like: Vector | None = None  # an empty vector of the models' kind

    def read(self, client: int, w: Vector) -> State:
        """The client's state; before its first visit, a fresh one."""
        self._like = w[:0]
        if client in self._states:
            return self._states[client]
        if client not in self._where:
            return self._init(w)
        return self._stored(client, w)

    def write(self, client: int, state: State) -> None:
        """Keep the client's state until its next visit, if the round is committed."""
        if state != ():
            self._pending[client] = state

    def written(self, client: int) -> bool:
        """Whether the current round wrote the client's state."""
        return client in self._pending

    def commit(self) -> None:
        """The round is done: what it wrote counts."""
        for client, state in self._pending.items():
            self._bytes += size(state) - size(self._states.get(client, ()))
            self._states[client] = state
            self._fresh.add(client)
        self._pending.clear()
        if self._store is not None and self._bytes > self._budget:
            self.save(self._store)
            self._states.clear()
            self._bytes = 0

    def discard(self) -> None:
        """The round failed: what it wrote does not count."""
        self._pending.clear()

    def visited(self) -> dict[int, State]:
        """The states of all clients that have one."""
        if self._like is None:
            return {}
        clients = sorted({*self._states, *self._where})
        return {client: self.read(client, self._like) for client in clients}

    def save(self, store: Segments) -> list[str]:
        """Write what no segment holds yet; the segments that hold all states, oldest first."""
        tensors: dict[str, Tensor] = {}
        about: dict[str, Json] = {}
        for i in [*sorted(self._fresh), *self._scattered(store)]:
            if i in self._fresh:
                about[str(i)] = encode(self._states[i], str(i), tensors, {})
            else:
                name, about[str(i)] = self._where[i]
                tensors.update((key, store.read(name, key)) for key in _names(about[str(i)]))
            if size(tuple(tensors.values())) >= PART:
                self._write(store, tensors, about)
                tensors, about = {}, {}
        if about:
            self._write(store, tensors, about)
        self._fresh.clear()
        return sorted({name for name, _ in self._where.values()})

    def _write(self, store: Segments, tensors: dict[str, Tensor], about: dict[str, Json]) -> None:
        name = store.write("clients", tensors, about)
        self._where.update((int(i), (name, structure)) for i, structure in about.items())

    def _scattered(self, store: Segments) -> list[int]:
        """The clients in segments that are mostly replaced: these segments are rewritten."""
        live: dict[str, list[int]] = {}
        for client, (name, _) in self._where.items():
            if client not in self._fresh:
                live.setdefault(name, []).append(client)
        few = [name for name in live if 2 * len(live[name]) < len(store.about(name))]
        return [client for name in few for client in live[name]]

    def _stored(self, client: int, w: Vector) -> State:
        assert self._store is not None
        name, structure = self._where[client]
        store = self._store
        return decode(structure, self._init(w), lambda key: store.read(name, key), {})

    def load(self, store: Segments, segments: list[str], w: Vector) -> None:
        """Become the memory that was saved in these segments."""
        self._store = store
        for name in segments:
            about = store.about(name)
            self._where.update((int(client), (name, about[client])) for client in about)
        if self._budget == float("inf"):
            self._states = {client: self._stored(client, w) for client in self._where}


def _names(structure: Json) -> Iterator[str]:
    """The names of a structure's tensors."""
    for kind, content in structure.items():
        if kind == "tensor":
            yield content
        elif kind == "tuple":
            for branch in content:
                yield from _names(branch)
