"""How stored examples become model inputs, and random crops and flips of images.

Data are stored as published (pixels as bytes); a transform turns a batch into model inputs.  In
training it may draw random numbers, at the batch's address (seed, round, client, step).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from wima.core.errors import unknown
from wima.core.randomness import rng

Address: TypeAlias = tuple[int, ...]
Augment: TypeAlias = Callable[[Tensor, Address], Tensor]
Ints: TypeAlias = npt.NDArray[np.int64]
PAD = 4  # black pixels on each side, before normalisation


class Transform(Protocol):
    """Turns stored examples into model inputs, with or without random augmentation."""

    def train(self, x: Tensor, address: Address) -> Tensor:
        return self.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Images(Transform):
    """Byte images to floats: cropped and flipped in training, divided by 255, normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "each"  # each: per image; batch: the same for all, as in FedJAX; none

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise unknown("augmentation", self.augment, AUGMENTS)

    def train(self, x: Tensor, address: Address) -> Tensor:
        return self.evaluate(AUGMENTS[self.augment](x, address))

    def evaluate(self, x: Tensor) -> Tensor:
        # (x / 255 - mean) / std as one fused multiply-add.
        scale = 1 / (255 * torch.tensor(self.std).view(-1, 1, 1))
        shift = -torch.tensor(self.mean).view(-1, 1, 1) * 255 * scale
        return torch.addcmul(shift, x.to(torch.float32), scale)


def crop_and_flip(x: Tensor, address: Address) -> Tensor:
    """Pad each image, crop it at a random place to its old size, flip it half of the time."""
    return _gather(x, *draw(len(x), 2 * PAD + 1, address))


def crop_and_flip_alike(x: Tensor, address: Address) -> Tensor:
    """FedJAX's variant: one crop and one flip for the whole batch, offsets 0 ... 7."""
    top, left, flip = draw(1, 2 * PAD, address)
    n = len(x)
    return _gather(x, top.repeat(n), left.repeat(n), flip.repeat(n))


def draw(n: int, places: int, address: Address) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """For each of n images: top and left of its crop, less than `places`; whether to flip it."""
    random = rng("augment", *address)
    top, left = random.integers(places, size=(2, n))
    return top, left, random.random(n) < 0.5


def _gather(x: Tensor, top: Ints, left: Ints, flip: npt.NDArray[np.bool_]) -> Tensor:
    """Crop all images at once, with one index into the padded batch."""
    n, channels, height, width = x.shape
    rows = top[:, None] + np.arange(height)
    columns = left[:, None] + np.where(flip[:, None], np.arange(width)[::-1], np.arange(width))
    pixels = rows[:, :, None] * (width + 2 * PAD) + columns[:, None, :]
    index = torch.from_numpy(pixels).view(n, 1, -1).expand(-1, channels, -1)
    padded = F.pad(x, (PAD, PAD, PAD, PAD)).flatten(2)
    return torch.gather(padded, 2, index).view(x.shape)


AUGMENTS: dict[str, Augment] = {
    "each": crop_and_flip,
    "batch": crop_and_flip_alike,
    "none": lambda x, address: x,
}


@dataclass(frozen=True)
class Ink(Transform):
    """Grey bytes to ink: 0 for white paper, 1 for black."""

    def evaluate(self, x: Tensor) -> Tensor:
        return 1 - x.to(torch.float32) / 255 if x.dtype == torch.uint8 else 1 - x


@dataclass(frozen=True)
class Characters(Transform):
    """Character ids, stored as bytes, to integers for an embedding."""

    def evaluate(self, x: Tensor) -> Tensor:
        return x.long()
