"""The convolutional network for FEMNIST."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from wima.core.errors import check, check_count
from wima.models.init import Dropout, channels_last, haiku_

SIDE = 28


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
