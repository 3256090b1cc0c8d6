"""Models for 8x8 digits and other small images."""

from __future__ import annotations

from torch import Tensor, nn


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
