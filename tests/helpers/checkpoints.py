"""Checkpoint files of several formats, and the mean of what they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def model(step: int) -> dict[str, torch.Tensor]:
    """Tensors of several shapes and dtypes, other ones at every step."""
    draw = torch.Generator().manual_seed(step)
    return {
        "layer.weight": torch.randn(7, 5, generator=draw),
        "layer.bias": torch.randn(7, generator=draw),
        "scale": torch.randn((), generator=draw),
        "empty": torch.zeros(0, 3),
        "double": torch.randn(3, generator=draw, dtype=torch.float64),
        "half": torch.randn(9, generator=draw).half(),
        "brain": torch.randn(9, generator=draw).bfloat16(),
        "steps": torch.tensor([step, -step]),
        "flags": torch.tensor([step % 2 == 0, True, False]),
    }


def small(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((4,), float(step)), "b": torch.tensor([step, 2.0 * step])}


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {n: t for n, t in tensors.items() if n != name}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        save_file(tensors, path, {"format": "pt", "step": path.stem})
    else:
        torch.save(tensors, path)
    return path


def load(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".npz":
        return {n: torch.from_numpy(np.asarray(array)) for n, array in np.load(path).items()}
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path)


def naive(models: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean of deep copies, in float64; of integers, the newest."""
    result = {}
    for name, newest in models[-1].items():
        total = sum(m[name].double() for m in models)
        floating = newest.is_floating_point()
        result[name] = (total / len(models)).to(newest.dtype) if floating else newest
    return result


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert set(a) == set(b)
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert torch.equal(a[name], b[name]), name
