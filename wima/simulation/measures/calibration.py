"""How far a model's confidence is from its accuracy.

Guo et al. 2017: predictions are sorted into bins of equal width by confidence, which is the largest
probability.  The expected calibration error is the mean over predictions of
|accuracy - mean confidence| of their bin.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wima.core.errors import check
from wima.simulation.measures.base import Better, Entries, Measure

BINS = 15
Bins: TypeAlias = list[tuple[int, float, float]]  # predictions, sum of confidences, correct ones


class Calibration(Measure):
    """The bins of every model, and their error as the metric `ece`."""

    better: Mapping[str, Better] = MappingProxyType({"ece": "lower"})

    def __init__(self, metric: Any) -> None:
        self._metric = metric  # may leave out some predictions, such as padding

    def part(self, output: Tensor, y: Tensor) -> Bins:
        """The sums over the predictions in each bin."""
        output, y = flat(self._metric, output, y)
        confidence, label = torch.softmax(output.double(), dim=1).max(dim=1)
        place = (confidence * BINS).ceil().sub(1).nan_to_num(0).clamp(0, BINS - 1).long()
        right = (label == y).double()
        sums = [torch.bincount(place, weights, BINS).tolist() for weights in (confidence, right)]
        return list(zip(torch.bincount(place, minlength=BINS).tolist(), *sums, strict=True))

    def combine(self, parts: list[Bins]) -> Bins:
        return [
            (sum(n for n, _, _ in bins), sum(c for _, c, _ in bins), sum(r for _, _, r in bins))
            for bins in zip(*parts, strict=True)
        ]

    def entries(self, values: dict[str, Bins]) -> Entries:
        return {
            "metrics": {name: {"ece": calibration_error(bins)} for name, bins in values.items()},
            "calibration": {name: reliability(bins) for name, bins in values.items()},
        }


def flat(metric: Any, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A row of class scores per prediction, and its label.

    A metric that skips some predictions, such as padding, has a method `flat` that does this.
    """
    output, y = metric.flat(output, y) if hasattr(metric, "flat") else (output, y)
    check(
        output.ndim == 2 and y.ndim == 1 and not y.is_floating_point(),
        "calibration needs a model with a score for each class and integer labels, got outputs of "
        f"shape {tuple(output.shape)} and labels of shape {tuple(y.shape)} ({y.dtype}).",
    )
    return output, y


def calibration_error(bins: Bins) -> float:
    """The expected calibration error."""
    return sum(abs(c - r) for _, c, r in bins) / max(1, sum(n for n, _, _ in bins))


def reliability(bins: Bins) -> list[list[float | None]]:
    """For each bin: the number of predictions, mean confidence and accuracy (None if empty)."""
    return [[n, c / n, r / n] if n else [0, None, None] for n, c, r in bins]
