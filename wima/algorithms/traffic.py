"""What an algorithm sends, found by calling its hooks with a model of one number."""

from collections.abc import Callable
from math import isnan, nan
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm, Local, State, Visit
from wima.core.vector import Vector, vectors


class Traffic(NamedTuple):
    """What one client receives and sends in a round: vectors of the model's length, or bytes."""

    down: int
    up: int


def traffic(algorithm: Algorithm) -> Traffic:
    """Down: w and the part of the server's state that clients read.  Up: the update and extras.

    If the cohort's mean gradient is needed first, each client also receives w and sends its
    gradient before training.  Clients keep their own memory.
    """
    first = algorithm.full_gradient == "cohort"
    down, up = 1 + sum(reads(algorithm)), 1 + sends_extra(algorithm)
    return Traffic(down + first, up + first)


def visit_bytes(algorithm: Algorithm, w: Vector, trained: int | None) -> Traffic | None:
    """The bytes that one client receives and sends; None if the hooks cannot be called.

    Models and updates include the statistics of norm layers, other vectors only the trained part.
    """
    try:
        sent = traffic(algorithm)
    except Exception:  # a user's own hooks may not accept a model of one number
        return None
    first = algorithm.full_gradient == "cohort"
    whole, part = (len(v) * w.element_size() for v in (w, w[:trained]))
    down = (1 + first) * whole + (sent.down - 1 - first) * part
    return Traffic(down, whole + (sent.up - 1) * part)


def sends_extra(algorithm: Algorithm) -> bool:
    """Whether clients send a vector besides their update."""
    _, extra, _ = _visited(algorithm, algorithm.init(_w()))
    return extra is not None


def reads(algorithm: Algorithm) -> list[bool]:
    """For each vector in the server's state, whether clients read it.

    If they do, NaNs in it spread to the client's problem, to what it sends or to its memory.
    """
    count = sum(1 for _ in vectors(algorithm.init(_w())))
    return [_spreads(algorithm, place) for place in range(count)]


def emptied(state: State, kept: list[bool]) -> State:
    """The state with empty vectors in place of those not kept."""
    keep = iter(kept)
    return _mapped(state, lambda vector: vector if next(keep) else vector[:0])


def _spreads(algorithm: Algorithm, place: int) -> bool:
    places = iter(range(place + 1))
    server = _mapped(
        algorithm.init(_w()), lambda v: torch.full_like(v, nan) if next(places, -1) == place else v
    )
    return any(isnan(float(v)) for v in vectors(_visited(algorithm, server)))


def _visited(algorithm: Algorithm, server: State) -> tuple[Local, Vector | None, State]:
    """The problem of a client, what it sends besides its update, and what it remembers."""
    w, client = _w(), algorithm.client_init(_w())
    local = algorithm.local(w, server, client)
    visit = Visit(w, w, 1, 1.0, 0, gradient=w, path_gradient=w)
    extra, memory = algorithm.client_finish(visit, server, client)
    return local, extra, memory


def _w() -> Vector:
    return torch.zeros(1)


def _mapped(tree: Any, change: Callable[[Vector], Vector]) -> Any:
    """The same nested tuples with `change` applied to every vector."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if not isinstance(tree, tuple):
        return tree
    branches = [_mapped(branch, change) for branch in tree]
    return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
