"""Networks; the functions in `BY_NAME` make one for a given input shape and number of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from torch import nn

from wima.core.errors import UsageError
from wima.models.cnn import SIDE, FemnistCNN
from wima.models.lenet import LeNet
from wima.models.lstm import ShakespeareLSTM
from wima.models.mobilenet import MobileNetV2, load_imagenet
from wima.models.resnet import ResNet
from wima.models.small import MLP, SmallCNN

Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """For any shape: flattens its input; 64 hidden units."""
    return MLP(prod(shape), 64, classes)


def small_cnn(shape: Shape, classes: int) -> nn.Module:
    """For square images with the channels first."""
    channels, side = _square("cnn", shape)
    return SmallCNN(channels, side, classes)


def resnet20(
    shape: Shape,
    classes: int,
    *,
    shortcut: Literal["A", "B"] = "A",
    groups: int = 2,
    init: Literal["kaiming", "haiku"] = "kaiming",
) -> nn.Module:
    """For square images with the channels first; CIFAR's are 3x32x32."""
    channels, _ = _square("resnet20", shape)
    return ResNet(classes, shortcut=shortcut, groups=groups, channels=channels, init=init)


def resnet8(
    shape: Shape, classes: int, *, width: int = 16, stride: int = 1, groups: int = 2
) -> nn.Module:
    """For square images with the channels first; stride=2 halves them in the first layer."""
    channels, _ = _square("resnet8", shape)
    return ResNet(classes, 8, width, stride, groups=groups, channels=channels)


def femnist_cnn(
    shape: Shape, classes: int, *, dropout: Sequence[float] = (0.25, 0.5), width: int = 32
) -> nn.Module:
    """For FEMNIST's images, 1x28x28."""
    if shape != (1, SIDE, SIDE):
        raise _misfit("femnist-cnn", f"(1, {SIDE}, {SIDE})", shape)
    return FemnistCNN(classes, dropout, width)


def shakespeare_lstm(
    shape: Shape, classes: int, *, embedding: int = 8, hidden: int = 256
) -> nn.Module:
    """For sequences of ids below `classes`: predicts the next one at every position."""
    if len(shape) != 1:
        raise _misfit("lstm", "(length,)", shape)
    return ShakespeareLSTM(classes, embedding, hidden)


def mobilenetv2(
    shape: Shape,
    classes: int,
    *,
    groups: int = 8,
    norm: Literal["group", "batch"] = "group",
    dropout: float = 0.0,
    weights: str | None = None,
) -> nn.Module:
    """For square RGB images with the channels first; weights: a file of ImageNet weights."""
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise _misfit("mobilenetv2", "(3, side, side)", shape)
    model = MobileNetV2(classes, groups, norm, dropout)
    if weights is not None:
        load_imagenet(model, weights, classifier=False)
    return model


def cifar_lenet(shape: Shape, classes: int, *, width: int = 64) -> nn.Module:
    """For square images with the channels first, of at least 16x16 pixels."""
    channels, side = _square("lenet", shape)
    return LeNet(classes, channels, side, width)


def _square(model: str, shape: Shape) -> tuple[int, int]:
    """Channels and side of square images with the channels first."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise _misfit(model, "(channels, side, side)", shape)
    return shape[0], shape[1]


def _misfit(model: str, expected: str, shape: Shape) -> UsageError:
    return UsageError(f"Model {model!r} needs examples of shape {expected}, got {shape}.")


BY_NAME: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": small_cnn,
    "resnet20": resnet20,
    "resnet8": resnet8,
    "femnist-cnn": femnist_cnn,
    "lstm": shakespeare_lstm,
    "mobilenetv2": mobilenetv2,
    "lenet": cifar_lenet,
}

__all__ = [
    "BY_NAME",
    "MLP",
    "FemnistCNN",
    "LeNet",
    "MobileNetV2",
    "ResNet",
    "ShakespeareLSTM",
    "SmallCNN",
    "load_imagenet",
]
