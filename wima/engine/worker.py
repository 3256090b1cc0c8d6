"""A worker process: reads problems from standard input, solves them, answers on standard output.

Messages are lines of JSON; vectors and data are in shared memory.  The first message is the task
itself, pickled by the parent that started this process.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from typing import Any, BinaryIO, NamedTuple

import torch

from wima.data.batches import LocalSGD
from wima.data.federated import FederatedData
from wima.engine.exams import exam_of
from wima.engine.local import Solver
from wima.engine.malloc import keep_freed_memory
from wima.engine.shared import Handle
from wima.engine.slots import SlotHandles, Slots
from wima.task.evaluation import Evaluation
from wima.task.task import Task


class Briefing(NamedTuple):
    """The first message to a worker."""

    task: Task  # without its data
    sgd: LocalSGD
    seed: int
    x: Handle
    y: Handle
    offsets: Handle
    slots: SlotHandles
    x_test: Handle | None = None  # if given, `task.evaluate` has no examples
    y_test: Handle | None = None


def main() -> None:
    """Serve until standard input closes, which happens however the parent exits."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the model must not look like an answer
    size = int.from_bytes(inbox.read(8), "little")
    briefing = pickle.loads(inbox.read(size))
    data = FederatedData(*(h.open() for h in (briefing.x, briefing.y, briefing.offsets)))
    task = briefing.task._replace(data=data)
    evaluation = task.evaluate
    if isinstance(evaluation, Evaluation) and briefing.x_test and briefing.y_test:
        evaluation.x = torch.from_numpy(briefing.x_test.open())
        evaluation.y = torch.from_numpy(briefing.y_test.open())
    solver, slots = Solver(task, briefing.sgd, briefing.seed), Slots(briefing.slots)
    _send(outbox, {"ready": os.getpid()})
    for line in inbox:
        _send(outbox, _answer(solver, slots, json.loads(line)))


def _answer(solver: Solver, slots: Slots, message: dict[str, Any]) -> dict[str, Any]:
    slot = message["slot"]
    try:
        if "exam" in message:
            models = list(slots.models[: message["models"]])
            answer = exam_of(message["exam"]).answer(solver, message["piece"], models)
            return {"slot": slot, "scores": answer}
        solution = solver.solve(slots.get(message))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"slot": slot, "error": reason, "traceback": traceback.format_exc()}
    slots.put_solution(slot, solution)
    return {"slot": slot, "steps": solution.steps}


def _send(outbox: BinaryIO, message: dict[str, Any]) -> None:
    outbox.write(json.dumps(message).encode() + b"\n")
    outbox.flush()
