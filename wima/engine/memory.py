"""What clients remember between visits (SCAFFOLD, FedDyn, AdaBest)."""

from __future__ import annotations

from collections.abc import Callable

from wima.algorithms.base import State
from wima.vector import Vector


class ClientMemory:
    """Client -> state, made at the first visit; algorithms without one store nothing."""

    def __init__(self, init: Callable[[Vector], State]) -> None:
        self._init = init
        self._states: dict[int, State] = {}

    def read(self, client: int, w: Vector) -> State:
        """The client's state; before its first visit, a fresh one."""
        return self._states[client] if client in self._states else self._init(w)

    def write(self, client: int, state: State) -> None:
        """Keep the client's state until its next visit."""
        if state != ():
            self._states[client] = state

    def visited(self) -> dict[int, State]:
        """The states of all clients that have one."""
        return dict(self._states)
