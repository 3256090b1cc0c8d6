"""Cheaper layers compute what torch's own compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wima.models import FemnistCNN, LeNet, ResNet, resnet as resnet_module
from wima.models.init import Dropout, channels_last, every_second_pixel


def test_channels_last_changes_the_order_of_memory_alone():
    for channels in (1, 3):
        x = torch.randn(2, channels, 4, 5)
        y = channels_last(x)
        assert torch.equal(x, y) and y.stride() == (20 * channels, 1, 5 * channels, channels)


def test_every_second_pixel_is_the_slice_and_so_is_its_gradient():
    for size in (4, 5):
        x = torch.randn(2, 3, size, size, requires_grad=True)
        picked, sliced = every_second_pixel(x), x[:, :, ::2, ::2]
        assert torch.equal(picked, sliced)
        direction = torch.randn_like(sliced)
        assert torch.equal(
            *(torch.autograd.grad((y * direction).sum(), x)[0] for y in (picked, sliced))
        )


@pytest.mark.parametrize("p", [0.25, 0.5, 0.3, 0.0, 1.0])
def test_dropout_keeps_entries_with_probability_one_minus_p_and_scales_them(p):
    torch.manual_seed(0)
    n = 200_000
    x = torch.rand(n // 8, 8) + 1
    y = Dropout(p)(x)
    kept = y != 0
    share, error = kept.double().mean().item(), (p * (1 - p) / n) ** 0.5
    assert abs(share - (1 - p)) <= 5 * error
    torch.testing.assert_close(y[kept], (x / (1 - p) if p < 1 else x)[kept])
    by_column = kept.double().mean(dim=0)  # every byte of the drawn words is as good
    assert (by_column - (1 - p)).abs().max() <= 5 * error * 8**0.5


def test_dropout_draws_afresh_each_time_and_the_same_from_the_same_seed():
    layer, x = Dropout(0.5), torch.ones(1001)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    agree = ((first > 0) == (second > 0)).double().mean().item()
    assert abs(agree - 0.5) < 5 * 0.5 / 1001**0.5


def test_dropout_passes_gradients_where_it_kept_and_nothing_in_evaluation():
    x = torch.ones(64, requires_grad=True)
    y = Dropout(0.25)(x)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(g, y)
    assert torch.equal(Dropout(0.25).eval()(x), x)


def plain_cnn(model: FemnistCNN, x: torch.Tensor) -> torch.Tensor:
    """As FedJAX's reads: convolution, ReLU, convolution, ReLU, pooling, dense layers."""
    x = F.relu(F.conv2d(x, model.conv1.weight, model.conv1.bias))
    x = F.relu(F.conv2d(x, model.conv2.weight, model.conv2.bias))
    x = F.max_pool2d(x, 2).permute(0, 2, 3, 1).reshape(len(x), -1)
    x = F.relu(F.linear(x, model.hidden.weight, model.hidden.bias))
    return F.linear(x, model.classifier.weight, model.classifier.bias)


def outputs_and_gradients(model: nn.Module, function, x, y) -> list[torch.Tensor]:
    output = function(x)
    return [output, *torch.autograd.grad(F.cross_entropy(output, y), list(model.parameters()))]


def assert_close(got, expected) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6 * max(1, b.abs().max().item()))


def test_the_femnist_network_equals_its_plain_twin():
    torch.manual_seed(0)
    model, x, y = FemnistCNN(dropout=(0, 0)), torch.rand(7, 1, 28, 28), torch.arange(7)
    plain = outputs_and_gradients(model, lambda x: plain_cnn(model, x), x, y)
    assert_close(outputs_and_gradients(model, model, x, y), plain)


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_the_resnet_equals_itself_with_channels_first_and_slices(shortcut, monkeypatch):
    torch.manual_seed(0)
    model, x, y = ResNet(shortcut=shortcut), torch.randn(4, 3, 32, 32), torch.arange(4)
    fast = outputs_and_gradients(model, model, x, y)
    monkeypatch.setattr(resnet_module, "channels_last", lambda x: x)
    monkeypatch.setattr(resnet_module, "every_second_pixel", lambda x: x[:, :, ::2, ::2])
    plain = outputs_and_gradients(model, model, x, y)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())


def plain_lenet(model: LeNet, x: torch.Tensor) -> torch.Tensor:
    """As Hsu et al. describe it: twice convolution, ReLU, pooling; then dense layers."""
    conv1, _, _, conv2, *_, dense1, _, dense2, _ = model.features
    for conv in (conv1, conv2):
        x = F.max_pool2d(F.relu(F.conv2d(x, conv.weight, conv.bias)), 2)
    x = F.relu(F.linear(x.flatten(1), dense1.weight, dense1.bias))
    x = F.relu(F.linear(x, dense2.weight, dense2.bias))
    return F.linear(x, model.classifier.weight, model.classifier.bias)


def test_the_lenet_equals_its_plain_twin():
    torch.manual_seed(0)
    model, x, y = LeNet(width=8), torch.rand(7, 3, 32, 32), torch.arange(7)
    plain = outputs_and_gradients(model, lambda x: plain_lenet(model, x), x, y)
    assert_close(outputs_and_gradients(model, model, x, y), plain)
