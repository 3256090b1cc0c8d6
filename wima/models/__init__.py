"""Networks; `BY_NAME` makes one for examples of a given shape and number of classes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from torch import nn

from wima.errors import UsageError
from wima.models.small import MLP, SmallCNN

Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Any shape: flattened, 64 hidden units."""
    return MLP(prod(shape), 64, classes)


def small_cnn(shape: Shape, classes: int) -> nn.Module:
    """Square images with the channels first."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UsageError(
            f"Model 'cnn' needs examples of shape (channels, side, side), got {shape}."
        )
    return SmallCNN(shape[0], shape[1], classes)


BY_NAME: dict[str, Callable[[Shape, int], nn.Module]] = {"mlp": mlp, "cnn": small_cnn}

__all__ = ["BY_NAME", "MLP", "SmallCNN"]
