"""A worker process of a pool: what it runs, and its parent's side."""

from __future__ import annotations

import os
import pickle
import subprocess
import traceback
from collections import deque
from typing import Any, NamedTuple

import torch

from wima.core.workers import Exited as Exited, Parent, Worker, pickled as pickled
from wima.data.batches import LocalSGD
from wima.data.federated import FederatedData
from wima.simulation.engines.shared import Handle, SlotHandles, Slots, keep_freed_memory
from wima.simulation.local import Solver
from wima.simulation.measures.evaluation import Evaluation
from wima.simulation.measures.finetune import exam_of
from wima.simulation.task import Task


def launch(module: str) -> subprocess.Popen[bytes]:
    """A worker process, for callers with a protocol of their own."""
    return Worker(module).process


def exit_message(process: subprocess.Popen[bytes]) -> str:
    """How a process exited; waits until it does."""
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    return f"A worker process (pid {process.pid}) {how}."


class Child(Worker):
    """One process and the slots of the jobs sent to it."""

    def __init__(self, descriptors: list[int]) -> None:
        super().__init__("wima.simulation.engines.worker", descriptors)
        self.slots: deque[int] = deque()  # in the order of the answers to come

    def give(self, job: dict[str, Any]) -> None:
        """Send a job; its slot comes back with the answer."""
        self.slots.append(job["slot"])
        self.send(job)

    def answers(self) -> list[dict[str, Any]]:
        """The answers that have arrived; waits for one if there are none."""
        answers = [header for header, _ in self.receive()]
        for _ in answers:
            self.slots.popleft()
        return answers


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
    parent = Parent()
    for job, parts in parent:
        if parts:  # the first message
            solver, slots = _prepared(pickle.loads(parts[0]))
            parent.send({"ready": os.getpid()})
        else:
            parent.send(_answer(solver, slots, job))


def _prepared(briefing: Briefing) -> tuple[Solver, Slots]:
    x, y, offsets = briefing.x.open(), briefing.y.open(), briefing.offsets.open()
    task = briefing.task._replace(data=FederatedData(x, y, offsets))
    evaluation = task.evaluate
    if isinstance(evaluation, Evaluation) and briefing.x_test and briefing.y_test:
        evaluation.x = torch.from_numpy(briefing.x_test.open())
        evaluation.y = torch.from_numpy(briefing.y_test.open())
    return Solver(task, briefing.sgd, briefing.seed), Slots(briefing.slots)


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
