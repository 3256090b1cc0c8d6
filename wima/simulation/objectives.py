"""Losses and metrics by kind of data: images with a class, and rows of characters.

A metric returns its mean over the batch, or (sum, count) if examples have different weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from wima.core.errors import unknown

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]

PAD = 0
CLEAN = ((0, 1, 2), (0, 1, 2, 89))  # PAD, BOS and EOS do not count; OOV is never predicted
FEDJAX = ((0, 88), (0, 87, 88, 89))  # FedJAX's model file uses other special ids than its data


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


METRICS = {"clean": CLEAN, "fedjax": FEDJAX}
