"""How stored examples become model inputs.

Data are stored as published (pixels as bytes); a transform turns a batch into model inputs.  In
training it may draw random numbers, at the batch's address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from wima.core.errors import unknown
from wima.data.augment import Augment, crop_and_flip, crop_and_flip_alike

Address = tuple[int, ...]


class Transform(Protocol):
    """Turns stored examples into model inputs, with or without random augmentation."""

    def train(self, x: Tensor, address: Address) -> Tensor: ...

    def evaluate(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Images:
    """Byte images to floats: cropped and flipped in training, divided by 255, normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "each"  # each: per image; batch: the same for all, as in FedJAX; none

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise unknown("augmentation", self.augment, AUGMENTS)

    def train(self, x: Tensor, address: Address) -> Tensor:
        augment = AUGMENTS[self.augment]
        return self.evaluate(x if augment is None else augment(x, address))

    def evaluate(self, x: Tensor) -> Tensor:
        # (x / 255 - mean) / std as one fused multiply-add.
        scale = 1 / (255 * torch.tensor(self.std).view(-1, 1, 1))
        shift = -torch.tensor(self.mean).view(-1, 1, 1) * 255 * scale
        return torch.addcmul(shift, x.to(torch.float32), scale)


AUGMENTS: dict[str, Augment | None] = {
    "each": crop_and_flip,
    "batch": crop_and_flip_alike,
    "none": None,
}


@dataclass(frozen=True)
class Ink:
    """Grey bytes to ink: 0 for white paper, 1 for black."""

    def train(self, x: Tensor, address: Address) -> Tensor:
        return self.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor:
        return 1 - x.to(torch.float32) / 255 if x.dtype == torch.uint8 else 1 - x


@dataclass(frozen=True)
class Characters:
    """Character ids, stored as bytes, to integers for an embedding."""

    def train(self, x: Tensor, address: Address) -> Tensor:
        return x.long()

    def evaluate(self, x: Tensor) -> Tensor:
        return x.long()
