"""Questions about models that any process can answer, piece by piece.

A piece is a batch of test examples, or a client that fine-tunes the models.  Answers are JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Local
from wima.core.checks import check_count, check_rate
from wima.core.vector import Vector
from wima.simulation.local import Problem, Solver
from wima.simulation.measures.evaluation import Detail, Evaluation


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """After the last round, each client fine-tunes the models: `steps` steps of SGD at rate `lr`.

    Batch size and weight decay are those of the run; there is no momentum.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> model, owners = torch.nn.Linear(4, 2), [0, 0, 1, 1]
        >>> task = wima.make_task(model, data, test=(x, y), test_clients=owners)
        >>> options = {"rounds": 2, "clients_per_round": 1, "finetune": wima.FineTune(steps=5)}
        >>> *_, last = wima.simulate(task, **options)
        >>> sorted(last.finetuned)
        ['plain']
    """

    steps: int = 10
    lr: float = 0.01

    def __post_init__(self) -> None:
        check_count("finetune.steps", self.steps)
        check_rate("finetune.lr", self.lr)


BY_NAME: dict[str, type[FineTune]] = {"sgd": FineTune}


class Exam(NamedTuple):
    """What to compute, and for which pieces."""

    pieces: Sequence[int]
    detail: Detail = Detail()
    finetune: FineTune | None = None
    t: int = 0  # completed rounds

    def answer(self, solver: Solver, piece: int, models: Sequence[Vector]) -> list[Any]:
        """The answer for one piece, for each model."""
        evaluation = solver.task.evaluate
        assert isinstance(evaluation, Evaluation)
        if self.finetune is None:
            return evaluation.piece(piece, models, self.detail)
        return [self._tuned(solver, self.finetune, piece, w) for w in models]

    def _tuned(self, solver: Solver, how: FineTune, client: int, w: Vector) -> list[Any]:
        """Sum and count of the client's first metric, before and after fine-tuning w."""
        evaluation = solver.task.evaluate
        assert isinstance(evaluation, Evaluation)
        sgd = replace(solver.sgd, steps=how.steps, momentum=0.0, clip=None)
        local = Local(w[: solver.task.trained].clone())
        visit, rest = Solver(solver.task, sgd, solver.seed).solve(
            Problem(self.t, client, how.lr, w, local)
        )
        tuned = torch.cat([visit.end, rest])
        return [evaluation.of_client(client, model) for model in (w, tuned)]

    def fields(self) -> dict[str, Any]:
        """The exam without its pieces, as JSON for another process."""
        tuning = None if self.finetune is None else asdict(self.finetune)
        return {"detail": self.detail, "finetune": tuning, "t": self.t}


def exam_of(fields: dict[str, Any]) -> Exam:
    """The inverse of `Exam.fields`."""
    tuning = fields["finetune"]
    how = None if tuning is None else FineTune(**tuning)
    return Exam((), Detail(*fields["detail"]), how, fields["t"])
