"""The metrics of a task and its loss: means over the test examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

from wima.simulation.measures.base import Better, Measure, Metrics
from wima.simulation.objectives import Loss, Metric

Total: TypeAlias = tuple[float, int]  # sum and count of a metric
FALLING = ("loss", "error")  # names of metrics of which less is better


class TaskMetrics(Measure):
    """The task's metrics, in their order, and the loss.

    A function may say in an attribute `better` whether "higher" or "lower" values are better.
    """

    def __init__(self, metrics: Mapping[str, Metric], loss: Loss) -> None:
        self.functions: dict[str, Metric] = {**metrics, "loss": loss}
        self.better = {n: getattr(f, "better", _usual(n)) for n, f in self.functions.items()}

    @property
    def leading(self) -> str:
        """The metric by which clients are compared: the first one."""
        return next(iter(self.functions))

    def part(self, output: Tensor, y: Tensor) -> list[Total]:
        return [total(f, output, y) for f in self.functions.values()]

    def combine(self, parts: list[list[Total]]) -> Metrics:
        return {
            name: sum(part[j][0] for part in parts) / max(1, sum(part[j][1] for part in parts))
            for j, name in enumerate(self.functions)
        }

    def entries(self, values: dict[str, Metrics]) -> dict[str, dict[str, Metrics]]:
        return {"metrics": values}  # a diverging model's loss may be infinite


def _usual(name: str) -> Better:
    return "lower" if any(word in name for word in FALLING) else "higher"


def total(metric: Metric, output: Tensor, y: Tensor) -> Total:
    """Sum and count of a metric over a batch; a metric returns its mean, or both."""
    value = metric(output, y)
    if isinstance(value, tuple):
        return float(value[0]), int(value[1])
    return float(value * len(y)), len(y)
