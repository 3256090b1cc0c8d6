"""What is measured about a model: measures, the metrics of a task, and where they are computed.

for each batch of test examples:    part = measure.part(output, y)         in any process
for each model:                     value = measure.combine(parts)         in the main process
for each record:                    entries = measure.entries({model: value})
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wima.core.errors import UsageError, check, unknown
from wima.core.vector import Vector
from wima.data.federated import Array
from wima.simulation.options import RunOptions
from wima.simulation.workspace import Loss, Workspace

Metrics: TypeAlias = dict[str, float]
Entries: TypeAlias = dict[str, dict[str, Any]]  # key of the record -> model -> value
Better: TypeAlias = Literal["higher", "lower"]


class Measure:
    """Something to record about every model, whenever models are evaluated.

    better: the names of its numbers, and whether "higher" or "lower" values are better.  They
    appear beside the metrics in records, tables, plots, trackers and data frames.

    `part` returns what a batch contributes: numbers, lists, dicts or tensors.  `combine` gets the
    parts of all batches in the order of the test set (tensors have become lists) and returns the
    numbers by name.  So a measure need not be a mean over examples.
    """

    better: Mapping[str, Better] = MappingProxyType({})
    all_examples = False  # also see examples that count only for the results of their clients

    def due(self, t: int, options: RunOptions) -> bool:
        """Whether to measure the models after t rounds."""
        return options.evaluates(t)

    def part(self, output: Tensor, y: Tensor) -> Any:
        """What a batch contributes.  output: of the model; y: the labels."""
        raise NotImplementedError

    def part_with_clients(self, output: Tensor, y: Tensor, clients: Array | None) -> Any:
        """The same, for measures that need to know whose examples they are; -1 is nobody's."""
        return self.part(output, y)

    def combine(self, parts: list[Any]) -> Any:
        """A model's value, from its parts on all batches."""
        raise NotImplementedError

    def entries(self, values: dict[str, Any]) -> Entries:
        """What goes into the record.  values: by model."""
        for value in values.values():
            check(
                isinstance(value, dict)
                and value.keys() == self.better.keys()
                and all(isinstance(number, int | float) for number in value.values()),
                f"The measure {type(self).__name__} must return a dict with a number for "
                f"{' and '.join(self.better)}, got {value!r:.80}.",
            )
        return {"metrics": values}


def as_json(part: Any) -> Any:
    """A part as it arrives from another process: tensors and tuples are lists."""
    if isinstance(part, Tensor):
        return part.tolist()
    if isinstance(part, dict):
        return {str(name): as_json(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [as_json(value) for value in part]
    return part


Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]

PAD = 0
METRICS = {  # targets that do not count, and outputs that are never predicted
    "clean": ((0, 1, 2), (0, 1, 2, 89)),  # PAD, BOS and EOS do not count; OOV is never predicted
    # FedJAX's model file uses other special ids than its data.
    "fedjax": ((0, 88), (0, 87, 88, 89)),
}


class Objective(NamedTuple):
    """What is minimised, and what is reported."""

    loss: Loss
    metrics: Mapping[str, Metric]


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """The share of examples whose largest output is that of their label."""
    return (output.argmax(dim=1) == y).double().mean()


def sequence_loss(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the next characters: summed over a row's non-padding, over its length."""
    losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none", ignore_index=PAD)
    return losses.sum() / y.numel()


class CharacterAccuracy:
    """The share of characters predicted correctly; targets in `skip` do not count."""

    def __init__(self, skip: tuple[int, ...], never: tuple[int, ...]) -> None:
        self._skip, self._never = list(skip), list(never)

    def __call__(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        possible, counts = self._masked(output, y)
        right = (possible.argmax(dim=-1) == y) & counts
        return right.sum(), counts.sum()

    def flat(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The scores and targets that count, one row each."""
        possible, counts = self._masked(output, y)
        return possible[counts], y[counts]

    def _masked(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        possible = output.clone()
        possible[..., self._never] = -torch.inf
        return possible, ~torch.isin(y, torch.tensor(self._skip, device=y.device))


def objective(kind: str, metric: str = "clean") -> Objective:
    """The objective of a kind of data."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if kind == "classes":
        return Objective(F.cross_entropy, {"accuracy": accuracy})
    return Objective(sequence_loss, {"accuracy": CharacterAccuracy(*METRICS[metric])})


Total: TypeAlias = tuple[float, int]  # sum and count of a metric
FALLING = ("loss", "error")  # names of metrics of which less is better


class TaskMetrics(Measure):
    """The task's metrics, in their order, and the loss.

    A function may say in an attribute `better` whether "higher" or "lower" values are better.
    """

    def __init__(self, metrics: Mapping[str, Metric], loss: Loss) -> None:
        self.functions: dict[str, Metric] = {**metrics, "loss": loss}
        self.better = {
            n: getattr(f, "better", "lower" if any(w in n for w in FALLING) else "higher")
            for n, f in self.functions.items()
        }

    def part(self, output: Tensor, y: Tensor) -> list[Total]:
        return [total(f, output, y, name) for name, f in self.functions.items()]

    def combine(self, parts: list[list[Total]]) -> Metrics:
        return {
            name: sum(part[j][0] for part in parts) / max(1, sum(part[j][1] for part in parts))
            for j, name in enumerate(self.functions)
        }

    def entries(self, values: dict[str, Metrics]) -> dict[str, dict[str, Metrics]]:
        return {"metrics": values}  # a diverging model's loss may be infinite


def total(metric: Metric, output: Tensor, y: Tensor, name: str = "that is first") -> Total:
    """Sum and count of a metric over a batch; a metric returns its mean, or both."""
    value = metric(output, y)
    try:  # 0 + text is an error, text * number is not
        summed, count = value if isinstance(value, tuple) else ((0 + value) * len(y), len(y))
        return float(summed), int(count)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"The metric {name} must return its mean over the batch, or its sum and the count, "
            f"got {value!r:.80}."
        ) from None


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
        self.leading = next(iter(self.metrics.functions.values()))  # by which clients are compared
        self.measures: dict[str, Measure] = {"metrics": self.metrics}
        self.batch_size, self.owners = batch_size, owners
        self.pooled = len(x) if pooled is None else pooled

    def __call__(self, w: Vector) -> Metrics:
        pieces = [self.piece(k, [w], ["metrics"])[0] for k in range(self.pieces())]
        return self.metrics.combine([parts["metrics"] for parts in pieces])

    def changed(self, **attributes: Any) -> Self:
        """A copy with other attributes."""
        copied = copy(self)
        vars(copied).update(attributes)
        return copied

    def of_clients(self, clients: Array) -> Self:
        """A copy restricted to these clients."""
        assert self.owners is not None
        owners = np.where(np.isin(self.owners, clients), self.owners, -1)
        kept = np.flatnonzero((owners >= 0) | (np.arange(len(owners)) < self.pooled))
        if len(kept) == len(owners):  # no copy of all examples
            return self.changed(owners=owners)
        return self.changed(x=self.x[kept], y=self.y[kept], owners=owners[kept])

    @property
    def clients(self) -> Array:
        """The clients that have test examples."""
        return np.unique([] if self.owners is None else self.owners[self.owners >= 0])

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
        return [
            {n: as_json(self.measures[n].part_with_clients(output, y, owners)) for n in needed}
            for output in (self._output(w, x) for w in models)
        ]

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
