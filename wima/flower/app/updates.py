"""Checks updates from nodes before they reach the global model."""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, Message, MetricRecord

from wima.core.vector import Vector
from wima.flower.arrays import to_tensors
from wima.simulation.round import is_finite


class Update(NamedTuple):
    """What a client sends: vectors by name, and its number of examples."""

    vectors: dict[str, Vector]
    examples: int


class Rejected(ValueError):  # noqa: N818  (it is a finding)
    """An update that cannot be used; the message says why."""


def read_update(reply: Message, sizes: Mapping[str, int]) -> Update:
    """The update in a reply; raises `Rejected` unless its vectors are finite and match `sizes`."""
    arrays, visit = (reply.content.get(name) for name in ("update", "visit"))
    if not isinstance(arrays, ArrayRecord) or not isinstance(visit, MetricRecord):
        raise Rejected(f"expected records update and visit, got {', '.join(reply.content)}")
    if set(arrays) != set(sizes):
        raise Rejected(f"expected arrays {', '.join(sizes)}, got {', '.join(arrays) or 'none'}")
    try:
        vectors = to_tensors(arrays)
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise Rejected(f"its arrays cannot be read: {error}") from None
    for name, vector in vectors.items():
        size = (sizes[name],)
        if vector.shape != size or vector.dtype != torch.float32:
            raise Rejected(
                f"{name} must be float32 of shape {size}, got {vector.dtype} of shape "
                f"{tuple(vector.shape)}"
            )
        if not is_finite(vector):
            raise Rejected(f"{name} is not finite")
    examples = visit.get("examples")
    if type(examples) is not int or examples < 1:
        raise Rejected(f"expected a number of examples, got {examples!r:.60}")
    return Update(vectors, examples)


def too_long(updates: Mapping[int, Update], model: float, largest: float) -> dict[int, str]:
    """Clients that sent a vector whose norm is too large, with the reason.

    A norm is too large if it exceeds both `largest` times the median norm of the other clients'
    vectors of that name and the norm of the model itself (or 1, if that is larger).  With fewer
    than two other clients, a median means little, and the limit is `largest` times the norm of the
    model.  So a single huge or tiny update cannot get an honest client rejected.
    """
    found: dict[int, str] = {}
    model = max(1.0, model)
    for name in {name for update in updates.values() for name in update.vectors}:
        norms = {i: float(update.vectors[name].norm()) for i, update in updates.items()}
        for i, norm in norms.items():
            others = [other for j, other in norms.items() if j != i]
            few = len(others) < 2
            limit = largest * model if few else max(largest * median(others), model)
            if not norm <= limit:
                found[i] = f"the norm of {name} is {norm:.3g}, more than {limit:.3g}"
    return found
