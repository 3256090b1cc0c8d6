"""Models with gradients, for windows that choose themselves."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

import wima
from tests.helpers.modules import Odd
from wima.averaging import WIMA, Averages

AUTO = partial(wima.WindowAverage, window="auto")
KINDS = [
    ((5,), torch.float32, "trained"),
    ((2, 2), torch.float64, "trained"),
    ((3,), torch.bfloat16, "trained"),
    ((4,), torch.float32, "buffer"),
    ((2,), torch.float16, "frozen"),
]


class Reference:
    """The rule of simulations, fed with flat float64 models and the gradients at them."""

    def __init__(self, average: wima.WindowAverage, model: nn.Module) -> None:
        self.names, self.model = average.names, model
        self.watch = Averages({"auto": WIMA("auto")}, self.flat())

    def flat(self, gradients: dict[str, Tensor] | None = None) -> Tensor:
        now: dict[str, Tensor] = dict(self.model.named_parameters())
        now |= dict(self.model.named_buffers())
        source = now if gradients is None else gradients
        zeros = {name: torch.zeros_like(now[name]) for name in self.names}
        parts = [source.get(name, zeros[name]).detach() for name in self.names]
        return torch.cat([part.reshape(-1).double() for part in parts])

    def update(self, gradients: dict[str, Tensor] | None) -> None:
        self.watch.update(self.flat(), None if gradients is None else self.flat(gradients))

    def assert_same(self, average: wima.WindowAverage) -> None:
        """To the bit, in each tensor's dtype."""
        mean = self.watch.vector("auto")
        for tensor in average.tensors().values():
            expected, mean = mean[: tensor.numel()], mean[tensor.numel() :]
            assert torch.equal(tensor.reshape(-1), expected.to(tensor.dtype))
        assert average.n_averaged == self.watch.used()["auto"]


def set_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients towards 0, with noise: around there, long windows are best."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn_like(parameter)
            parameter.grad = parameter.detach().clone() + noise
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def step(model: Odd) -> dict[str, Tensor]:
    """SGD around 0; the gradients that it used."""
    gradients = set_gradients(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.3 * parameter.grad
    return gradients
