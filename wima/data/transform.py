"""What happens to examples on their way into the model.

Data are stored as their publishers have them (bytes for pixels); a transform turns a batch into
what the model takes.  In training it may draw random numbers, at the batch's address.
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
    """Training and evaluation see the same examples, training perhaps distorted."""

    def train(self, x: Tensor, address: Address) -> Tensor: ...

    def evaluate(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Images:
    """Byte images to numbers: cropped and flipped in training, divided by 255, normalised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: str = "each"  # each image by itself; batch: all alike, as FedJAX does; none

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise unknown("augmentation", self.augment, AUGMENTS)

    def train(self, x: Tensor, address: Address) -> Tensor:
        augment = AUGMENTS[self.augment]
        return self.evaluate(x if augment is None else augment(x, address))

    def evaluate(self, x: Tensor) -> Tensor:
        # One fused multiply-add: x / 255 - mean, over std.
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
    """Grey bytes on white paper to ink: 0 for paper, 1 for black."""

    def train(self, x: Tensor, address: Address) -> Tensor:
        return self.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor:
        return 1 - x.to(torch.float32) / 255 if x.dtype == torch.uint8 else 1 - x


@dataclass(frozen=True)
class Characters:
    """Character ids, stored as bytes, to the integers that an embedding takes."""

    def train(self, x: Tensor, address: Address) -> Tensor:
        return x.long()

    def evaluate(self, x: Tensor) -> Tensor:
        return x.long()
