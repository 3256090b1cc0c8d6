"""A network with running statistics and dropout, named in settings by its path."""

from torch import nn


def Net(shape, classes):  # noqa: N802  (stands for a class)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(16, classes),
    )
