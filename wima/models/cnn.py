"""Small networks for images: a perceptron, two convolutions for digits, FEMNIST's, a LeNet."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from wima.core.errors import check, check_count
from wima.models.init import Dropout, channels_last, haiku_

SIDE = 28  # of FEMNIST's images


class MLP(nn.Module):
    """Flatten, one hidden layer with ReLU, classifier."""

    def __init__(self, inputs: int = 64, hidden: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(x.flatten(1)).relu()
        return self.classifier(hidden)  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """Two 3x3 convolutions with ReLU, 2x2 pooling, classifier."""

    def __init__(self, channels: int = 1, side: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(32 * (side // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


class FemnistCNN(nn.Module):
    """FedJAX's EMNIST network for 1x28x28: two 3x3 convolutions, pooling, 128 hidden units.

    `width`: the channels of the first convolution; the second has twice as many.
    `dropout`: the rates after pooling and after the hidden layer.  Haiku's initialisation.
    """

    def __init__(
        self, classes: int = 62, dropout: Sequence[float] = (0.25, 0.5), width: int = 32
    ) -> None:
        super().__init__()
        check_count("FemnistCNN.width", width)
        check(
            len(dropout) == 2 and all(0 <= rate <= 1 for rate in dropout),
            f"FemnistCNN.dropout must be two rates between 0 and 1, got {dropout}.",
        )
        pooled = (SIDE - 2 - 2) // 2  # each unpadded convolution removes a border of 1
        self.conv1 = nn.Conv2d(1, width, 3)
        self.conv2 = nn.Conv2d(width, 2 * width, 3)
        self.dropout1 = Dropout(dropout[0])
        self.hidden = nn.Linear(2 * width * pooled**2, 128)
        self.dropout2 = Dropout(dropout[1])
        self.classifier = nn.Linear(128, classes)
        haiku_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(channels_last(x)).relu_())
        x = F.max_pool2d(x, 2).relu_()  # the ReLU of conv2: equal after pooling, and cheaper
        x = self.dropout1(x.permute(0, 2, 3, 1).flatten(1))  # pixel by pixel, as in memory
        x = self.dropout2(self.hidden(x).relu_())
        return self.classifier(x)  # type: ignore[no-any-return]


class LeNet(nn.Module):
    """Two 5x5 convolutions of `width` channels, each with 2x2 pooling; 384 and 192 hidden units.

    A cheaper substitute for ResNet20 on CIFAR.  With a width of 64 it is the network of Hsu et al.
    2019 and of FedSAM (Caldarola et al. 2022).  torch's initialisation.
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
