"""The convolutional network for FEMNIST."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from wima.errors import check
from wima.models.init import haiku_

SIDE = 28


class FemnistCNN(nn.Module):
    """FedJAX's EMNIST network: two 3x3 convolutions, pooling, 128 hidden units; for 1x28x28.

    `dropout`: the rates after the pooling and after the hidden layer.  Haiku's initialisation.
    """

    def __init__(self, classes: int = 62, dropout: Sequence[float] = (0.25, 0.5)) -> None:
        super().__init__()
        check(
            len(dropout) == 2 and all(0 <= rate <= 1 for rate in dropout),
            f"FemnistCNN.dropout must be two rates between 0 and 1, got {dropout}.",
        )
        pooled = (SIDE - 2 - 2) // 2  # each convolution without padding takes a border of 1
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(dropout[0]),
            nn.Flatten(),
            nn.Linear(64 * pooled**2, 128),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
        )
        self.classifier = nn.Linear(128, classes)
        haiku_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]
