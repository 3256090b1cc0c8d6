"""Initial weights: the rules used by the papers' networks."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from wima.core.errors import unknown


def truncated_normal_(weight: Tensor, sigma: float) -> None:
    """Normal with standard deviation sigma, truncated at ±2 sigma, in place.

    As in Haiku, sigma applies before truncation; afterwards the deviation is 0.88 sigma.
    """
    nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


def haiku_(module: nn.Module) -> None:
    """Haiku's default: truncated normal with sigma = 1 / sqrt(fan_in), zero biases."""
    _each_layer(module, lambda weight: truncated_normal_(weight, 1 / sqrt(weight[0].numel())))


def kaiming_(module: nn.Module) -> None:
    """He et al. 2015 for ReLU: normal with sigma = sqrt(2 / fan_in), here with zero biases."""
    _each_layer(module, lambda weight: _normal_(weight, sqrt(2 / weight[0].numel())))


def _normal_(weight: Tensor, sigma: float) -> None:
    nn.init.normal_(weight, std=sigma)


@torch.no_grad()
def _each_layer(module: nn.Module, fill: Callable[[Tensor], None]) -> None:
    """Fill the weights of all convolutions and linear layers, and zero their biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fill(layer.weight)
            if layer.bias is not None:
                layer.bias.zero_()


BY_NAME = {"haiku": haiku_, "kaiming": kaiming_}


def initialise_(module: nn.Module, name: str) -> None:
    """Apply the rule of that name; norm layers keep scale 1 and offset 0."""
    if name not in BY_NAME:
        raise unknown("initialisation", name, BY_NAME)
    BY_NAME[name](module)
