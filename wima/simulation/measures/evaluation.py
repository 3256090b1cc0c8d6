"""Measures of models on fixed examples, in pieces that several processes can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wima.core.vector import Vector
from wima.data.federated import Array
from wima.simulation.measures.base import Measure, Metrics, as_json
from wima.simulation.measures.metrics import TaskMetrics, Total, total
from wima.simulation.objectives import Loss, Metric
from wima.simulation.workspace import Workspace


class Evaluation:
    """A function of a vector.  Parts are computed piece by piece, in any process.

    owners: the client of each example, -1 for none.  Metrics are computed over the first `pooled`
    examples, by default all; the remaining ones count only for the results of their clients.
    """

    def __init__(
        self,
        workspace: Workspace,
        x: Tensor,
        y: Tensor,
        loss: Loss,
        metrics: Mapping[str, Metric],
        batch_size: int,
        owners: Array | None = None,
        pooled: int | None = None,
    ) -> None:
        self.workspace, self.x, self.y = workspace, x, y
        self.metrics = TaskMetrics(metrics, loss)
        self.measures: dict[str, Measure] = {"metrics": self.metrics}
        self.batch_size, self.owners = batch_size, owners
        self.pooled = len(x) if pooled is None else pooled

    def __call__(self, w: Vector) -> Metrics:
        pieces = [self.piece(k, [w], ["metrics"])[0] for k in range(self.pieces())]
        return self.metrics.combine([parts["metrics"] for parts in pieces])

    def without_examples(self) -> Evaluation:
        """A copy for other processes, which get the examples separately."""
        return self._with(x=self.x[:0], y=self.y[:0])

    def with_measures(self, measures: Mapping[str, Measure]) -> Evaluation:
        """A copy that also knows these measures."""
        return self._with(measures={**self.measures, **measures})

    def of_clients(self, clients: Array) -> Evaluation:
        """A copy restricted to these clients."""
        assert self.owners is not None
        owners = np.where(np.isin(self.owners, clients), self.owners, -1)
        kept = np.flatnonzero((owners >= 0) | (np.arange(len(owners)) < self.pooled))
        if len(kept) == len(owners):
            return self._with(owners=owners)
        return self._with(x=self.x[kept], y=self.y[kept], owners=owners[kept])

    def _with(self, **changes: Any) -> Evaluation:
        changed = copy(self)
        vars(changed).update(changes)
        return changed

    @property
    def clients(self) -> Array:
        """The clients that have test examples."""
        return np.unique([] if self.owners is None else self.owners[self.owners >= 0])

    @property
    def leading(self) -> Metric:
        """The metric by which clients are compared: the first one."""
        return self.metrics.functions[self.metrics.leading]

    def pieces(self, names: Sequence[str] = ()) -> int:
        """The number of batches that these measures need."""
        behind = any(self.measures[name].all_examples for name in names)
        return self._batches(self.pooled) + self._batches(behind * (len(self.x) - self.pooled))

    def _batches(self, examples: int) -> int:
        return -(-examples // self.batch_size)

    def _rows(self, k: int) -> slice:
        """The examples of the k-th batch; no batch mixes pooled examples with others."""
        first = self._batches(self.pooled)
        start, end = (0, self.pooled) if k < first else (self.pooled, len(self.x))
        start += self.batch_size * (k if k < first else k - first)
        return slice(start, min(end, start + self.batch_size))

    def piece(self, k: int, models: Sequence[Vector], names: Sequence[str]) -> list[dict[str, Any]]:
        """For each model, the parts of these measures on the k-th batch, as JSON."""
        rows = self._rows(k)
        x, y = self._examples(rows)
        owners = None if self.owners is None else self.owners[rows]
        pooled = rows.start < self.pooled
        needed = [name for name in names if pooled or self.measures[name].all_examples]
        parts = []
        for w in models:
            output = self._output(w, x)
            parts.append(
                {n: as_json(self.measures[n].part_with_clients(output, y, owners)) for n in needed}
            )
        return parts

    def of_client(self, client: int, w: Vector) -> Total:
        """Sum and count of the first metric on a client's own examples."""
        assert self.owners is not None
        own, totals = np.flatnonzero(self.owners == client), []
        for rows in np.array_split(own, self._batches(len(own))):
            x, y = self._examples(rows)
            totals.append(total(self.leading, self._output(w, x), y))
        return sum(summed for summed, _ in totals), sum(count for _, count in totals)

    def _examples(self, rows: slice | Array) -> tuple[Tensor, Tensor]:
        transform, device = self.workspace.transform, self.workspace.device
        x, y = self.x[rows], self.y[rows].to(device)
        return (transform.evaluate(x) if transform else x).to(device), y

    @torch.inference_mode()
    def _output(self, w: Vector, x: Tensor) -> Tensor:
        self.workspace.module.eval()
        self.workspace.w.copy_(w)
        return self.workspace.module(x)  # type: ignore[no-any-return]
