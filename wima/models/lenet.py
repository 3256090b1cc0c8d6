"""A LeNet-like network for CIFAR, a cheaper substitute for ResNet20."""

from __future__ import annotations

from torch import Tensor, nn

from wima.core.errors import check, check_count
from wima.models.init import channels_last


class LeNet(nn.Module):
    """Two 5x5 convolutions of `width` channels, each with 2x2 pooling; 384 and 192 hidden units.

    With a width of 64 it is the network of Hsu et al. 2019 and of FedSAM (Caldarola et al. 2022).
    torch's initialisation.
    """

    def __init__(
        self, classes: int = 10, channels: int = 3, side: int = 32, width: int = 64
    ) -> None:
        super().__init__()
        check_count("LeNet.width", width)
        check(side >= 16, f"LeNet needs images of at least 16x16 pixels, got {side}x{side}.")
        pooled = ((side - 4) // 2 - 4) // 2  # an unpadded 5x5 convolution removes 4
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),  # equal to a ReLU before pooling, and cheaper
            nn.Conv2d(width, width, 5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(width * pooled**2, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(192, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(channels_last(x)))  # type: ignore[no-any-return]
