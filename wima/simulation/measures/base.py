"""A measure is one file: what it computes on a batch, how batches combine, what is recorded.

for each batch of test examples:    part = measure.part(output, y)         in any process
for each model:                     value = measure.combine(parts)         in the main process
for each record:                    entries = measure.entries({model: value})
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from torch import Tensor

from wima.core.errors import check
from wima.data.federated import Array
from wima.simulation.options import RunOptions

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

    Examples:
        >>> import torch, wima
        >>> class WorstClass(wima.Measure):
        ...     better = {"worst_class": "higher"}
        ...
        ...     def part(self, output, y):
        ...         right = output.argmax(1) == y
        ...         return [torch.bincount(y[k], minlength=2) for k in (right, right >= 0)]
        ...
        ...     def combine(self, parts):
        ...         right, all_ = torch.tensor(parts).sum(0)
        ...         return {"worst_class": float((right / all_).min())}
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> options = {"rounds": 9, "clients_per_round": 2, "lr": 1.0}
        >>> wima.run(task, measures=[WorstClass()], **options).curve("plain", "worst_class")[1][-1]
        1.0
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
