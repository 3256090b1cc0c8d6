"""ResNets of 8, 14, 20, ... layers with GroupNorm, for CIFAR."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from wima.core.errors import check, check_count, check_one_of
from wima.models.init import channels_last, every_second_pixel, haiku_, kaiming_

STAGES = 3
INITIAL = {"kaiming": kaiming_, "haiku": haiku_}


class ResNet(nn.Module):
    """He et al. 2016, section 4.2, with GroupNorm instead of BatchNorm.

    A 3x3 convolution, three stages of n blocks with `width`, twice and four times as many channels,
    the mean over all pixels, and a linear classifier: 6n + 2 layers.  Stages 2 and 3 halve the
    image; a stride of 2 also halves it in the first convolution, for a quarter of the work.

    shortcut, where a stage changes the shape: "A" skips pixels and pads channels with zeros, "B" is
    a 1x1 convolution followed by a norm.  init: "kaiming" or "haiku", see `wima.models.init`.
    """

    def __init__(
        self,
        classes: int = 10,
        depth: int = 20,
        width: int = 16,
        stride: int = 1,
        *,
        shortcut: Literal["A", "B"] = "A",
        groups: int = 2,
        channels: int = 3,
        init: Literal["kaiming", "haiku"] = "kaiming",
    ) -> None:
        super().__init__()
        check_count("ResNet.width", width)
        check_count("ResNet.groups", groups)
        check(
            depth >= 8 and depth % (2 * STAGES) == 2,
            f"ResNet.depth must be 8, 14, 20, ... (6n + 2), got {depth}.",
        )
        check(stride in (1, 2), f"ResNet.stride must be 1 or 2, got {stride}.")
        check_one_of("ResNet.shortcut", shortcut, tuple(SHORTCUTS))
        check_one_of("ResNet.init", init, tuple(INITIAL))
        check(width % groups == 0, f"ResNet.groups must divide {width} channels, got {groups}.")
        self.conv = conv3x3(channels, width, stride)
        self.norm = nn.GroupNorm(groups, width)
        blocks, inputs = [], width
        for outputs in (width << stage for stage in range(STAGES)):
            for _ in range((depth - 2) // (2 * STAGES)):
                blocks.append(Block(inputs, outputs, groups, shortcut))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, classes)
        INITIAL[init](self)

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
    """Option A: every second pixel; new channels are zero, half of them on each side."""

    def __init__(self, inputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.side = (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(every_second_pixel(x), (0, 0, 0, 0, self.side, self.side))


class ConvShortcut(nn.Sequential):
    """Option B: a 1x1 convolution with stride 2, then a norm."""

    def __init__(self, inputs: int, width: int, groups: int) -> None:
        conv = nn.Conv2d(inputs, width, 1, stride=2, bias=False)
        super().__init__(conv, nn.GroupNorm(groups, width))


SHORTCUTS: dict[str, type[PadShortcut | ConvShortcut]] = {"A": PadShortcut, "B": ConvShortcut}


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size (stride 1), without bias because a norm follows."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
