"""Random crops and flips of image batches, a function of (seed, round, client, step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from wima.core.randomness import rng

PAD = 4  # black pixels on each side, before normalisation
Augment: TypeAlias = Callable[[Tensor, tuple[int, ...]], Tensor]
Draws: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]


def crop_and_flip(x: Tensor, address: tuple[int, ...]) -> Tensor:
    """Pad each image, crop it at a random place to its old size, flip it half of the time."""
    top, left, flip = draw(len(x), 2 * PAD + 1, address)
    return _gather(x, top, left, flip)


def crop_and_flip_alike(x: Tensor, address: tuple[int, ...]) -> Tensor:
    """FedJAX's variant: one crop and one flip for the whole batch, offsets 0 ... 7."""
    top, left, flip = draw(1, 2 * PAD, address)
    n = len(x)
    return _gather(x, np.repeat(top, n), np.repeat(left, n), np.repeat(flip, n))


def draw(n: int, places: int, address: tuple[int, ...]) -> Draws:
    """For each of n images: top and left of its crop, less than `places`; whether to flip it."""
    random = rng("augment", *address)
    top, left = random.integers(places, size=(2, n))
    return top, left, random.random(n) < 0.5


def _gather(
    x: Tensor,
    top: npt.NDArray[np.int64],
    left: npt.NDArray[np.int64],
    flip: npt.NDArray[np.bool_],
) -> Tensor:
    """Crop all images at once, with one index into the padded batch."""
    n, channels, height, width = x.shape
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.where(flip[:, None], np.arange(width)[::-1], np.arange(width))
    pixels = rows[:, :, None] * (width + 2 * PAD) + columns[:, None, :]
    index = torch.from_numpy(pixels).view(n, 1, -1).expand(-1, channels, -1)
    padded = F.pad(x, (PAD, PAD, PAD, PAD)).flatten(2)
    return torch.gather(padded, 2, index).view(x.shape)
