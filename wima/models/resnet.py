"""ResNet20 with GroupNorm, for CIFAR."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from wima.core.errors import check
from wima.models.init import initialise_
from wima.models.speed import channels_last, every_second_pixel

WIDTHS = (16, 32, 64)
BLOCKS = 3  # per width: 1 + 3 * 3 * 2 convolutions + 1 linear layer = 20


class ResNet20(nn.Module):
    """He et al. 2016, section 4.2, with GroupNorm in the place of BatchNorm.

    A 3x3 convolution, three stages of three blocks with 16, 32 and 64 channels, the mean over all
    pixels, and a linear classifier.  Stages 2 and 3 halve the image.

    shortcut, where a stage changes the shape: "A" skips pixels and pads channels with zeros,
    "B" is a 1x1 convolution with its norm.  init: "kaiming" or "haiku", see `wima.models.init`.
    """

    def __init__(
        self,
        classes: int = 10,
        shortcut: Literal["A", "B"] = "A",
        groups: int = 2,
        channels: int = 3,
        init: Literal["kaiming", "haiku"] = "kaiming",
    ) -> None:
        super().__init__()
        check(shortcut in SHORTCUTS, f"ResNet20.shortcut must be 'A' or 'B', got {shortcut!r}.")
        check(
            groups > 0 and WIDTHS[0] % groups == 0,
            f"ResNet20.groups must divide {WIDTHS[0]} channels, got {groups}.",
        )
        self.conv = conv3x3(channels, WIDTHS[0])
        self.norm = nn.GroupNorm(groups, WIDTHS[0])
        blocks, inputs = [], WIDTHS[0]
        for width in WIDTHS:
            for _ in range(BLOCKS):
                blocks.append(Block(inputs, width, groups, shortcut))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(WIDTHS[-1], classes)
        initialise_(self, init)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(channels_last(x))).relu_()
        x = self.blocks(x).mean(dim=(2, 3))
        return self.classifier(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """conv, norm, ReLU, conv, norm, plus the shortcut, ReLU; a wider block has stride 2."""

    def __init__(self, inputs: int, width: int, groups: int, shortcut: str) -> None:
        super().__init__()
        stride = 1 if inputs == width else 2
        self.conv1 = conv3x3(inputs, width, stride)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = conv3x3(width, width)
        self.norm2 = nn.GroupNorm(groups, width)
        same = nn.Identity()
        self.shortcut = same if stride == 1 else SHORTCUTS[shortcut](inputs, width, groups)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu_()
        y = self.norm2(self.conv2(y))
        return (y + self.shortcut(x)).relu_()  # type: ignore[no-any-return]


class PadShortcut(nn.Module):
    """Option A: every second pixel; the new channels are zeros, half of them on each side."""

    def __init__(self, inputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.side = (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(every_second_pixel(x), (0, 0, 0, 0, self.side, self.side))


class ConvShortcut(nn.Sequential):
    """Option B: a 1x1 convolution with stride 2, and its norm."""

    def __init__(self, inputs: int, width: int, groups: int) -> None:
        conv = nn.Conv2d(inputs, width, 1, stride=2, bias=False)
        super().__init__(conv, nn.GroupNorm(groups, width))


SHORTCUTS: dict[str, type[PadShortcut] | type[ConvShortcut]] = {
    "A": PadShortcut,
    "B": ConvShortcut,
}


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size (stride 1), without bias: a norm follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
