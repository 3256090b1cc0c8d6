"""The vectors of a round's local problems in shared memory, one slot per job."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from wima.core.errors import check
from wima.core.vector import Vector
from wima.engine.base import Setup
from wima.engine.local import Problem, Solution
from wima.engine.messages import fields_of, problem_of, vectors_of
from wima.engine.shared import Handle, Shared

_NUMPY = {torch.float32: "float32", torch.float64: "float64"}


class SlotHandles(NamedTuple):
    """How a worker finds the slots."""

    w: Handle
    start: Handle
    shift: Handle
    end: Handle
    gradient: Handle
    path_gradient: Handle
    models: Handle  # to evaluate


class Slots:
    """Rows for problems and solutions.  Messages carry numbers; vectors are exchanged here."""

    def __init__(self, handles: SlotHandles) -> None:
        arrays = [torch.from_numpy(handle.open()) for handle in handles]
        self.w, self.start, self.shift, self.end, self.gradient, self.path_gradient = arrays[:6]
        self.models = arrays[6]

    def put(self, slot: int, problem: Problem) -> dict[str, Any]:
        """Write a problem; return the message for the worker."""
        for name, vector in vectors_of(problem).items():
            (self.start if name == "start" else self.shift)[slot].copy_(vector)
        return {"slot": slot, **fields_of(problem)}

    def get(self, message: dict[str, Any]) -> Problem:
        """On the worker: the problem of a message."""
        slot = message["slot"]
        vectors = {"start": self.start[slot], "shift": self.shift[slot]}
        return problem_of(message, self.w, len(vectors["start"]), vectors)

    def put_solution(self, slot: int, solution: Solution) -> None:
        if solution.end is not None:
            self.end[slot].copy_(solution.end)
        if solution.gradient is not None:
            self.gradient[slot].copy_(solution.gradient)
        if solution.path_gradient is not None:
            self.path_gradient[slot].copy_(solution.path_gradient)

    def get_solution(self, slot: int, problem: Problem, steps: int) -> Solution:
        """A copy of the solution that a worker wrote."""
        end = self.end[slot].clone() if problem.local is not None else None
        gradient = self.gradient[slot].clone() if problem.full_gradient else None
        path = self.path_gradient[slot].clone() if problem.path_gradient else None
        return Solution(end, steps, gradient, path)


def allocate(shared: Shared, slots: int, models: int, w: Vector, setup: Setup) -> SlotHandles:
    """Memory for the slots, and for gradients if the algorithm requests them."""
    check(
        w.dtype in _NUMPY,
        f"engine 'processes' takes models in float32 or float64, got {w.dtype}; use 'serial'.",
    )
    dtype, d, trained = _NUMPY[w.dtype], len(w), len(w[: setup.trained])
    full = slots if setup.algorithm.full_gradient != "none" else 0
    path = slots if setup.algorithm.path_gradient else 0
    row, gradients = (slots, trained), [(full, trained), (path, trained)]
    shapes = [(d,), row, row, (slots, d), *gradients, (models, d)]
    return SlotHandles(*(shared.allocate(shape, dtype) for shape in shapes))
