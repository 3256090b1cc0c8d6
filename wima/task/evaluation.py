"""Loss and metrics of models on fixed examples, in pieces that several processes can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from wima.core.vector import Vector
from wima.task.objectives import Loss, Metric
from wima.task.workspace import Workspace

Metrics: TypeAlias = dict[str, float]
Totals: TypeAlias = list[tuple[float, int]]  # sum and count of each measure


class Evaluation:
    """A function of a vector.  Sums are taken piece by piece, in whichever process."""

    def __init__(
        self,
        workspace: Workspace,
        x: Tensor,
        y: Tensor,
        loss: Loss,
        metrics: Mapping[str, Metric],
        batch_size: int,
    ) -> None:
        self.workspace, self.x, self.y = workspace, x, y
        self.loss, self.metrics = loss, metrics
        self.measures: dict[str, Metric] = {**metrics, "loss": loss}
        self.batch_size = batch_size

    def __call__(self, w: Vector) -> Metrics:
        return self.together([w])[0]

    def together(self, models: Sequence[Vector]) -> list[Metrics]:
        """The metrics of several models in one pass over the examples."""
        return self.combine([self.piece(k, models) for k in range(self.pieces)])

    def without_examples(self) -> Evaluation:
        """A copy to send to other processes, which get the examples separately."""
        return Evaluation(
            self.workspace, self.x[:0], self.y[:0], self.loss, self.metrics, self.batch_size
        )

    @property
    def pieces(self) -> int:
        """How many batches the examples make."""
        return -(-len(self.x) // self.batch_size)

    @torch.inference_mode()
    def piece(self, k: int, models: Sequence[Vector]) -> list[Totals]:
        """What each model scores on the k-th batch."""
        module, transform = self.workspace.module, self.workspace.transform
        place = slice(k * self.batch_size, (k + 1) * self.batch_size)
        x, y = self.x[place], self.y[place].to(self.workspace.device)
        x = (transform.evaluate(x) if transform else x).to(self.workspace.device)
        module.eval()
        scores = []
        for w in models:
            self.workspace.w.copy_(w)
            scores.append(self._score(module(x), y))
        return scores

    def _score(self, output: Tensor, y: Tensor) -> Totals:
        totals = []
        for measure in self.measures.values():
            value = measure(output, y)
            total, count = value if isinstance(value, tuple) else (value * len(y), len(y))
            totals.append((float(total), int(count)))
        return totals

    def combine(self, scores: Sequence[Sequence[Totals]]) -> list[Metrics]:
        """Pieces -> the metrics of each model."""
        results = []
        for model in range(len(scores[0])):
            metrics = {}
            for j, name in enumerate(self.measures):
                pairs = [piece[model][j] for piece in scores]
                metrics[name] = sum(t for t, _ in pairs) / max(1, sum(c for _, c in pairs))
            results.append(metrics)
        return results
