"""Local problems as JSON; their vectors travel separately."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from wima.algorithms.base import Local
from wima.core.vector import Vector
from wima.engine.local import Problem


def starts_at_w(problem: Problem) -> bool:
    """Whether the client starts from the global model itself."""
    return problem.local is None or problem.local.start.data_ptr() == problem.w.data_ptr()


def fields_of(problem: Problem) -> dict[str, Any]:
    """The problem without w and without the vectors in `vectors_of`."""
    local, fields = problem.local, None
    if local is not None:
        fields = {
            "start": "w" if starts_at_w(problem) else "vector",
            "scale": float(local.scale),
            "prox": float(local.prox),
            "shift": "vector" if isinstance(local.shift, Tensor) else float(local.shift),
            "anchored": bool(local.anchored),
        }
    return {
        "t": problem.t,
        "client": problem.client,
        "lr": problem.lr,
        "full_gradient": problem.full_gradient,
        "path_gradient": problem.path_gradient,
        "share": problem.share,
        "local": fields,
    }


def vectors_of(problem: Problem) -> dict[str, Vector]:
    """`start` and `shift`, if they are vectors other than w."""
    if problem.local is None:
        return {}
    own = {} if starts_at_w(problem) else {"start": problem.local.start}
    shift = problem.local.shift
    return {**own, "shift": shift} if isinstance(shift, Tensor) else own


def named_vectors(fields: dict[str, Any]) -> list[str]:
    """The names in `vectors_of` of the problem with these fields."""
    local = fields["local"] or {}
    return [name for name in ("start", "shift") if local.get(name) == "vector"]


def problem_of(
    fields: dict[str, Any], w: Vector, trained: int | None, vectors: dict[str, Vector]
) -> Problem:
    """The inverse of `fields_of` and `vectors_of`."""
    local, given = None, fields["local"]
    if given is not None:
        start = vectors["start"] if given["start"] == "vector" else w[:trained]
        shift = vectors["shift"] if given["shift"] == "vector" else given["shift"]
        local = Local(start, given["scale"], given["prox"], shift, given["anchored"])
    wanted = fields["full_gradient"], fields["path_gradient"], fields["share"]
    return Problem(fields["t"], fields["client"], fields["lr"], w, local, *wanted)
