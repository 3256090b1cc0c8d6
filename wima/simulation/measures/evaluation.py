"""Loss and metrics of models on fixed examples, in pieces that several processes can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wima.core.vector import Vector
from wima.data.federated import Array
from wima.simulation.measures.calibration import Bins, bins_of, flat, merged
from wima.simulation.objectives import Loss, Metric
from wima.simulation.workspace import Workspace

Metrics: TypeAlias = dict[str, float]
Total: TypeAlias = tuple[float, int]  # sum and count of a measure


class Detail(NamedTuple):
    """What to compute besides metrics."""

    clients: bool = False  # the first metric on each client's own examples
    calibration: bool = False


NO_DETAIL = Detail()


class Scores(NamedTuple):
    """A model's scores on a batch; JSON turns them into lists."""

    totals: list[Total]  # of each measure
    clients: list[tuple[int, float, int]]  # client, sum and count of the first metric
    bins: Bins


class Found(NamedTuple):
    """A model's scores on all examples."""

    metrics: Metrics
    clients: dict[int, float]  # the first metric of each client
    bins: Bins


class Evaluation:
    """A function of a vector.  Sums are computed piece by piece, in any process.

    owners: the client of each example, -1 for none.  Metrics are computed over the first `pooled`
    examples, by default all; the remaining ones count only for the metrics of their clients.
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
        self.loss, self.metrics = loss, metrics
        self.measures: dict[str, Metric] = {**metrics, "loss": loss}
        self.batch_size, self.owners = batch_size, owners
        self.pooled = len(x) if pooled is None else pooled

    def __call__(self, w: Vector) -> Metrics:
        pieces = range(self.pieces())
        return self.combine([self.piece(k, [w]) for k in pieces])[0].metrics

    def without_examples(self) -> Evaluation:
        """A copy for other processes, which get the examples separately."""
        return self._with(self.x[:0], self.y[:0], self.owners)

    def of_clients(self, clients: Array) -> Evaluation:
        """A copy restricted to these clients."""
        assert self.owners is not None
        owners = np.where(np.isin(self.owners, clients), self.owners, -1)
        kept = np.flatnonzero((owners >= 0) | (np.arange(len(owners)) < self.pooled))
        if len(kept) == len(owners):
            return self._with(self.x, self.y, owners)
        return self._with(self.x[kept], self.y[kept], owners[kept])

    def _with(self, x: Tensor, y: Tensor, owners: Array | None) -> Evaluation:
        more = (self.loss, self.metrics, self.batch_size, owners, self.pooled)
        return Evaluation(self.workspace, x, y, *more)

    @property
    def clients(self) -> Array:
        """The clients that have test examples."""
        return np.unique([] if self.owners is None else self.owners[self.owners >= 0])

    @property
    def leading(self) -> str:
        """The metric by which clients are compared: the first one."""
        return next(iter(self.measures))

    def pieces(self, detail: Detail = NO_DETAIL) -> int:
        """The number of batches of the requested examples."""
        behind = len(self.x) - self.pooled if detail.clients else 0
        return self._batches(self.pooled) + self._batches(behind)

    def _batches(self, examples: int) -> int:
        return -(-examples // self.batch_size)

    def _place(self, k: int) -> slice:
        """The examples of the k-th batch; no batch mixes pooled examples with others."""
        first = self._batches(self.pooled)
        start, end = (0, self.pooled) if k < first else (self.pooled, len(self.x))
        start += self.batch_size * (k if k < first else k - first)
        return slice(start, min(end, start + self.batch_size))

    def piece(self, k: int, models: Sequence[Vector], detail: Detail = NO_DETAIL) -> list[Scores]:
        """Each model's scores on the k-th batch."""
        place = self._place(k)
        x, y = self._examples(place)
        owners = self.owners[place] if detail.clients and self.owners is not None else None
        scores = []
        for w in models:
            output, pooled = self._output(w, x), place.start < self.pooled
            totals = [_total(m, output, y) for m in self.measures.values()] if pooled else []
            clients = [] if owners is None else self._by_client(output, y, owners)
            binned = detail.calibration and pooled
            bins = bins_of(*flat(self.measures[self.leading], output, y)) if binned else []
            scores.append(Scores(totals, clients, bins))
        return scores

    def of_client(self, client: int, w: Vector) -> Total:
        """Sum and count of the first metric on a client's own examples."""
        assert self.owners is not None
        own, totals = np.flatnonzero(self.owners == client), []
        for rows in np.array_split(own, self._batches(len(own))):
            x, y = self._examples(rows)
            totals.append(_total(self.measures[self.leading], self._output(w, x), y))
        return sum(total for total, _ in totals), sum(count for _, count in totals)

    def _examples(self, rows: slice | Array) -> tuple[Tensor, Tensor]:
        transform, device = self.workspace.transform, self.workspace.device
        x, y = self.x[rows], self.y[rows].to(device)
        return (transform.evaluate(x) if transform else x).to(device), y

    @torch.inference_mode()
    def _output(self, w: Vector, x: Tensor) -> Tensor:
        self.workspace.module.eval()
        self.workspace.w.copy_(w)
        return self.workspace.module(x)  # type: ignore[no-any-return]

    def _by_client(self, output: Tensor, y: Tensor, owners: Array) -> list[tuple[int, float, int]]:
        """The first metric of each block of consecutive examples of one client."""
        starts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
        measure = self.measures[self.leading]
        return [
            (int(owners[a]), *_total(measure, output[a:b], y[a:b]))
            for a, b in pairwise(starts)
            if owners[a] >= 0
        ]

    def combine(self, pieces: Sequence[Sequence[Scores]]) -> list[Found]:
        """Each model's scores on all pieces together."""
        models = zip(*pieces, strict=True)
        return [self._found([Scores(*scores) for scores in model]) for model in models]

    def _found(self, pieces: list[Scores]) -> Found:
        metrics = {}
        for j, name in enumerate(self.measures):
            pairs = [piece.totals[j] for piece in pieces if piece.totals]
            metrics[name] = sum(t for t, _ in pairs) / max(1, sum(c for _, c in pairs))
        sums: dict[int, Total] = {}
        for client, total, count in (one for piece in pieces for one in piece.clients):
            before = sums.get(client, (0.0, 0))
            sums[client] = before[0] + total, before[1] + count
        clients = {client: total / max(1, count) for client, (total, count) in sums.items()}
        return Found(metrics, clients, merged([piece.bins for piece in pieces if piece.bins]))


def _total(measure: Metric, output: Tensor, y: Tensor) -> Total:
    value = measure(output, y)
    total, count = value if isinstance(value, tuple) else (value * len(y), len(y))
    return float(total), int(count)
