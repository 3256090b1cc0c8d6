"""Networks; the functions in `BY_NAME` make one for a given input shape and number of classes."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from torch import nn

from wima.core.errors import check
from wima.models.cnn import MLP, SIDE, FemnistCNN, LeNet, SmallCNN
from wima.models.lstm import ShakespeareLSTM
from wima.models.mobilenet import MobileNetV2, load_imagenet
from wima.models.resnet import ResNet

__all__ = ["MLP", "FemnistCNN", "LeNet", "MobileNetV2", "ResNet", "ShakespeareLSTM", "SmallCNN"]
__all__ += ["load_imagenet"]
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
    _check_shape("femnist-cnn", shape, f"(1, {SIDE}, {SIDE})", shape == (1, SIDE, SIDE))
    return FemnistCNN(classes, dropout, width)


def shakespeare_lstm(
    shape: Shape, classes: int, *, embedding: int = 8, hidden: int = 256
) -> nn.Module:
    """For sequences of ids below `classes`: predicts the next one at every position."""
    _check_shape("lstm", shape, "(length,)", len(shape) == 1)
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
    fits = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    _check_shape("mobilenetv2", shape, "(3, side, side)", fits)
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
    fits = len(shape) == 3 and shape[1] == shape[2]
    _check_shape(model, shape, "(channels, side, side)", fits)
    return shape[0], shape[1]


def _check_shape(model: str, shape: Shape, expected: str, fits: bool) -> None:
    check(fits, f"Model {model!r} needs examples of shape {expected}, got {shape}.")


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
