"""MobileNetV2 with GroupNorm for landmarks, and its ImageNet weights."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from wima.core.errors import UsageError, check, check_one_of

Norm: TypeAlias = Callable[[int], nn.Module]  # channels -> layer

# Table 2 of Sandler et al. 2018: expansion t, channels c, blocks n, stride s of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FIRST, LAST = 32, 1280  # channels before and after them


class MobileNetV2(nn.Module):
    """Sandler et al. 2018 with width 1, for images with three channels.

    norm="group" replaces every BatchNorm with a GroupNorm, by default of 8 groups as in Google's
    federated GLDv2 trainer.  norm="batch" is the original.  Tensors have torchvision's names.
    Initialisation as in torchvision: He et al. 2015 by fan_out; classifier N(0, 0.01^2), bias 0.
    """

    def __init__(
        self,
        classes: int = 2028,
        groups: int = 8,
        norm: Literal["group", "batch"] = "group",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_one_of("MobileNetV2.norm", norm, ("group", "batch"))
        check(groups in (1, 2, 4, 8), f"MobileNetV2.groups must be 1, 2, 4 or 8, got {groups}.")
        make_norm: Norm = partial(nn.GroupNorm, groups) if norm == "group" else nn.BatchNorm2d
        layers: list[nn.Module] = [conv_norm_relu(3, FIRST, make_norm, kernel=3, stride=2)]
        inputs = FIRST
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                step = stride if block == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, step, expansion, make_norm))
                inputs = outputs
        layers.append(conv_norm_relu(inputs, LAST, make_norm))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, classes))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """1x1 to more channels, depthwise 3x3, 1x1 back without ReLU; adds x if the shape allows it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([] if expansion == 1 else [conv_norm_relu(inputs, wide, norm)]),
            conv_norm_relu(wide, wide, norm, kernel=3, stride=stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            norm(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


def conv_norm_relu(
    inputs: int, outputs: int, norm: Norm, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution that keeps the size (stride 1), its norm, ReLU6."""
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(conv, norm(outputs), nn.ReLU6(inplace=True))


def load_imagenet(
    model: MobileNetV2, path: str | os.PathLike[str], *, classifier: bool | None = None
) -> tuple[str, ...]:
    """Copy torchvision's tensors from an .npz, .safetensors or .pth file; return their names.

    With BatchNorm, all tensors are copied.  With GroupNorm, only the convolutions are: the norms
    keep their initial values, because batch statistics say nothing about groups within an image.
    classifier: whether to copy the classifier too; by default only with BatchNorm.
    """
    layers = dict(model.named_modules())
    batch = any(isinstance(layer, nn.BatchNorm2d) for layer in layers.values())

    def is_wanted(name: str) -> bool:
        if name.startswith("classifier."):
            return batch if classifier is None else classifier
        return batch or isinstance(layers[name.rpartition(".")[0]], nn.Conv2d)

    wanted = {name: tensor for name, tensor in model.state_dict().items() if is_wanted(name)}
    source = _read(Path(path))
    missing = [name for name in wanted if name not in source]
    check(not missing, f"{path} has no tensor {_some(missing)}: is it torchvision's MobileNetV2?")
    misshapen = [
        f"{name} of shape {tuple(source[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if source[name].shape != tensor.shape
    ]
    hint = " Set classifier=False to keep the model's own." * ("classifier" in str(misshapen))
    check(not misshapen, f"{path} has {_some(misshapen)}.{hint}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(source[name])
    return tuple(wanted)


def _some(names: list[str], most: int = 4) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _read(path: Path) -> Mapping[str, Tensor]:
    """Name -> tensor, in any known format; nothing in the file is executed."""
    suffixes = ", ".join(READERS)
    check(path.suffix in READERS, f"The file of weights must end in {suffixes}, got {path}.")
    check(path.is_file(), f"No such file of weights: {path}.")
    try:
        content = READERS[path.suffix](path)
    except Exception as error:  # damaged bytes can raise anything in readers
        raise UsageError(f"Cannot read weights from {path}: {error}") from error
    kind = type(content).__name__
    check(isinstance(content, Mapping), f"{path} must hold a state dict, got {kind}.")
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}


def _read_npz(path: Path) -> Mapping[str, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


READERS: dict[str, Callable[[Path], Any]] = {
    ".npz": _read_npz,
    ".safetensors": safetensors.torch.load_file,
    **dict.fromkeys((".pth", ".pt"), partial(torch.load, map_location="cpu", weights_only=True)),
}
