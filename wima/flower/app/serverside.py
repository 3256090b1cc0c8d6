"""The server's half of an algorithm whose clients run on other nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wima.algorithms.base import Algorithm, Extra, ExtraMean, FullGradient, Local, State, Visit
from wima.core.vector import Vector


class Counted(NamedTuple):
    """All that the server remembers about a client."""

    t: int  # the round of the last visit that counted; -1: none yet


@dataclass(frozen=True, kw_only=True)
class ServerSide(Algorithm):
    """The algorithm without its clients' memory, which stays on their nodes."""

    complete: Algorithm

    @property
    def full_gradient(self) -> FullGradient:
        return self.complete.full_gradient

    @property
    def own_server_rule(self) -> bool:
        return self.complete.own_server_rule

    @property
    def extra_mean(self) -> ExtraMean:
        return self.complete.extra_mean

    def init(self, w: Vector) -> State:
        return self.complete.init(w)

    def client_init(self, w: Vector) -> Counted:
        return Counted(-1)

    def observe(self, gradient: Vector, server: State) -> State:
        return self.complete.observe(gradient, server)

    # Nodes run the next two hooks; here they are only tried, to learn what clients send.

    def local(self, w: Vector, server: State, client: Counted) -> Local:
        return self.complete.local(w, server, self.complete.client_init(w))

    def client_finish(self, visit: Visit, server: State, client: Counted) -> tuple[Extra, Counted]:
        memory = self.complete.client_init(visit.start)
        return self.complete.client_finish(visit, server, memory)[0], client

    def server_update(
        self, w: Vector, delta: Vector, extra: Extra, server: State, fraction: float
    ) -> tuple[Vector, State]:
        return self.complete.server_update(w, delta, extra, server, fraction)

    def served(self, w: Vector, server: State) -> Vector:
        return self.complete.served(w, server)
