"""After the last round, each client fine-tunes the models on its own examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from wima.algorithms.base import Local
from wima.core.errors import check_count, check_rate
from wima.core.vector import Vector
from wima.simulation.local import Problem, Solver
from wima.simulation.measures.base import Entries, Total
from wima.simulation.measures.clients import summaries


@dataclass(frozen=True, kw_only=True)
class FineTune:
    """After the last round, each client fine-tunes the models: `steps` steps of SGD at rate `lr`.

    Batch size and weight decay are those of the run; there is no momentum.
    """

    steps: int = 10
    lr: float = 0.01

    def __post_init__(self) -> None:
        check_count("finetune.steps", self.steps)
        check_rate("finetune.lr", self.lr)

    def part(self, solver: Solver, client: int, w: Vector, t: int) -> list[Total]:
        """Sum and count of the client's first metric, before and after fine-tuning w."""
        task = solver.task
        sgd = replace(solver.sgd, steps=self.steps, momentum=0.0, clip=None)
        local = Local(w[: task.trained].clone())
        visit, rest = Solver(task, sgd, solver.seed).solve(Problem(t, client, self.lr, w, local))
        tuned = torch.cat([visit.end, rest])
        return [task.evaluate.of_client(client, model) for model in (w, tuned)]  # type: ignore[attr-defined]

    def entries(
        self, clients: Sequence[int], models: Sequence[str], parts: Sequence[Sequence[Any]]
    ) -> Entries:
        """The distribution over clients before and after, by model.  parts: client -> model."""
        before, after = (
            summaries(
                {
                    model: {
                        client: part[j][stage][0] / max(1, part[j][stage][1])
                        for client, part in zip(clients, parts, strict=True)
                    }
                    for j, model in enumerate(models)
                }
            )
            for stage in (0, 1)
        )
        return {
            "finetuned": {name: {"before": before[name], "after": after[name]} for name in models}
        }


BY_NAME: dict[str, type[FineTune]] = {"sgd": FineTune}
