"""Modules to be averaged, and the mean of their deep copies."""

from __future__ import annotations

import torch
from torch import nn

from wima.data.sets.digits import load_digits


class Odd(nn.Module):
    """Tensors of given shapes, dtypes and kinds; the first one also has a second name."""

    def __init__(self, kinds: list[tuple[tuple[int, ...], torch.dtype, str]]) -> None:
        super().__init__()
        for k, (shape, dtype, kind) in enumerate(kinds):
            value = torch.randn(shape, dtype=torch.float64).to(dtype)
            if kind == "buffer":
                self.register_buffer(f"t{k}", value)
            else:
                self.register_parameter(f"t{k}", nn.Parameter(value, kind == "trained"))
        self.register_buffer("steps", torch.tensor(0))
        self.inner = nn.Module()
        if kinds[0][2] != "buffer":
            self.inner.tied = self.t0

    @torch.no_grad()
    def step(self) -> None:
        """A random walk of all that is not frozen."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter += torch.randn_like(parameter) / 8
        for buffer in self.buffers():
            buffer += torch.randn_like(buffer) / 8 if buffer.is_floating_point() else 1


def naive_mean(copies: list[nn.Module], window: int) -> dict[str, torch.Tensor]:
    """The mean of the last copies; of integers, the newest."""
    states = [model.state_dict() for model in copies[-window:]]
    return {
        name: torch.stack([s[name].double() for s in states]).mean(0).to(newest.dtype)
        if newest.is_floating_point()
        else newest
        for name, newest in states[-1].items()
    }


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal up to the rounding of each tensor's own dtype."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        exact = not tensor.is_floating_point()
        near = 0.0 if exact else max(torch.finfo(tensor.dtype).eps, 1e-12)
        torch.testing.assert_close(found[name], tensor, rtol=near, atol=near / 8)


def assert_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(_bytes(found[name]), _bytes(tensor)), name


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def clone(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def net() -> nn.Sequential:
    """A network with dropout and BatchNorm: random numbers and buffers."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    return nn.Sequential(*layers)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits()
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def train(model: nn.Module, steps: int, after=lambda: None) -> torch.optim.Optimizer:
    """SGD with momentum on digits; `after` is called after every step."""
    torch.manual_seed(1)
    x, y = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        batch = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        after()
    return optimizer
