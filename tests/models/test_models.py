"""The networks: their sizes, layers, initial weights, and that each learns as a flat vector."""

from __future__ import annotations

from itertools import pairwise, product
from math import erf, exp, pi, sqrt

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.helpers.plain_twins import plain_lstm
from wima import Flat, UsageError
from wima.models import BY_NAME, FemnistCNN, LeNet, ResNet, ShakespeareLSTM
from wima.models.lstm import LSTM, fused_lstm
from wima.models.resnet import PadShortcut
from wima.simulation.workspace import _is_random


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def layers(module: nn.Module, kind: type) -> list:
    return [layer for layer in module.modules() if isinstance(layer, kind)]


def conv(inputs: int, outputs: int, side: int, bias: bool = False) -> int:
    return outputs * (inputs * side**2 + bias)


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def resnet_size(classes: int, width: int = 16, blocks: int = 3) -> int:
    """Option A: every convolution with the scale and offset of its norm."""
    stages = [width, 2 * width, 4 * width]
    widths = [3, width] + [stage for stage in stages for _ in range(2 * blocks)]
    return sum(conv(i, o, 3) + 2 * o for i, o in pairwise(widths)) + linear(4 * width, classes)


OPTION_B = conv(16, 32, 1) + 2 * 32 + conv(32, 64, 1) + 2 * 64
LSTMS = linear(8 + 256, 4 * 256) + linear(256 + 256, 4 * 256)
LENET = conv(3, 64, 5, True) + conv(64, 64, 5, True) + linear(64 * 5 * 5, 384) + linear(384, 192)


@pytest.mark.parametrize(
    ("model", "published", "derived"),
    [
        (ResNet(10), 269_722, resnet_size(10)),
        (ResNet(100), 275_572, resnet_size(100)),
        (ResNet(10, shortcut="B"), 272_474, resnet_size(10) + OPTION_B),
        (ResNet(100, shortcut="B"), 278_324, resnet_size(100) + OPTION_B),
        (FemnistCNN(), 1_206_590, 320 + 18_496 + linear(12 * 12 * 64, 128) + linear(128, 62)),
        (ShakespeareLSTM(), 820_522, LSTMS + 90 * 8 + linear(256, 90)),
        (LeNet(10), 797_962, LENET + linear(192, 10)),
        (LeNet(100), 815_332, LENET + linear(192, 100)),
    ],
)
def test_number_of_parameters(model, published, derived):
    assert size(model) == published == derived
    assert Flat(model).layout.size == published  # no buffers beside them
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_smaller_resnet_has_fewer_and_narrower_blocks():
    assert size(ResNet(10, 8)) == resnet_size(10, blocks=1)
    assert size(ResNet(10, 14, width=8, stride=2)) == resnet_size(10, width=8, blocks=2)
    seen = []
    model = ResNet(10, 8, stride=2)
    model.blocks.register_forward_hook(
        lambda *call: seen.extend(t.shape for t in (*call[1], call[2]))
    )
    model(torch.zeros(1, 3, 32, 32))
    assert seen == [(1, 16, 16, 16), (1, 64, 4, 4)]


# name, shape of an example, classes, options; small sides where the network allows them
FITTING = [
    ("mlp", (1, 8, 8), 10, {}),
    ("cnn", (1, 8, 8), 10, {}),
    ("resnet20", (3, 16, 16), 10, {}),
    ("resnet20", (1, 9, 9), 10, {"shortcut": "B", "groups": 4, "init": "haiku"}),
    ("resnet8", (3, 16, 16), 10, {"stride": 2, "width": 8}),
    ("femnist-cnn", (1, 28, 28), 62, {}),
    ("femnist-cnn", (1, 28, 28), 62, {"width": 3}),
    ("lstm", (12,), 90, {}),
    ("mobilenetv2", (3, 32, 32), 10, {}),
    ("mobilenetv2", (3, 64, 64), 10, {"norm": "batch", "dropout": 0.2}),
    ("lenet", (3, 32, 32), 100, {}),
    ("lenet", (1, 28, 28), 10, {"width": 5}),
]


def example(shape: tuple[int, ...], classes: int, n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels; sequences of ids have a label at every place."""
    if len(shape) == 1:
        return torch.randint(classes, (n, *shape)), torch.randint(classes, (n, *shape))
    return torch.randn(n, *shape), torch.randint(classes, (n,))


@pytest.mark.parametrize(("name", "shape", "classes", "options"), FITTING)
def test_every_model_learns_as_a_flat_vector(name, shape, classes, options):
    model = BY_NAME[name](shape, classes, **options)
    flat = Flat(model)
    x, y = example(shape, classes)
    losses = []
    for _ in range(5):
        flat.g.zero_()
        torch.manual_seed(0)  # one mask of the dropout, so that the losses can be compared
        output = model(x)
        loss = cross_entropy(output.flatten(0, -2), y.flatten())
        loss.backward()
        assert torch.isfinite(flat.g).all() and flat.g.count_nonzero() > 0
        flat.w[: len(flat.g)] -= 0.02 * flat.g / flat.g.norm()
        losses.append(loss.item())
    assert output.shape == (*y.shape, classes)
    assert losses[-1] < losses[0] - 0.01, losses
    assert flat.layout.classifier[-1].startswith("classifier.")
    random = name == "femnist-cnn" or "dropout" in options
    assert any(_is_random(layer) for layer in model.modules()) == random
    model.eval()
    with torch.inference_mode():
        assert torch.equal(model(x), model(x))


def test_every_registered_model_is_tested():
    assert {name for name, *_ in FITTING} == set(BY_NAME)


MISFITS = {
    "cnn": [(64,), (1, 8, 9)],
    "resnet20": [(3072,), (32, 32, 3)],
    "resnet8": [(3072,), (32, 32, 3)],
    "femnist-cnn": [(784,), (3, 28, 28)],
    "lstm": [(), (1, 28, 28)],
    "mobilenetv2": [(1, 28, 28), (224, 224, 3)],
    "lenet": [(3, 32, 16), (1, 8, 8)],
}


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name, shapes in MISFITS.items() for shape in shapes]
)
def test_a_shape_that_does_not_fit_is_refused(name, shape):
    with pytest.raises(UsageError, match=r"needs (examples|images)"):
        BY_NAME[name](shape, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(shortcut="C"), "must be one of A, B, got 'C'"),
        (lambda: ResNet(groups=3), "groups must divide 16 channels, got 3"),
        (lambda: ResNet(depth=18), "depth must be 8, 14, 20, .*, got 18"),
        (lambda: ResNet(stride=3), "stride must be 1 or 2, got 3"),
        (lambda: ResNet(init="kaimin"), "init must be one of kaiming, haiku, got 'kaimin'"),
        (lambda: FemnistCNN(dropout=(0.5,)), "must be two rates between 0 and 1"),
        (lambda: FemnistCNN(dropout=(0.5, 1.5)), "must be two rates between 0 and 1"),
    ],
)
def test_options_that_are_not_there_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# --- ResNet20


@pytest.mark.parametrize(("shortcut", "convolutions"), [("A", 19), ("B", 21)])
@pytest.mark.parametrize("groups", [2, 8])
def test_a_group_norm_follows_every_convolution(shortcut, convolutions, groups):
    model = ResNet(shortcut=shortcut, groups=groups)
    norms = layers(model, nn.GroupNorm)
    assert len(layers(model, nn.Conv2d)) == len(norms) == convolutions
    assert {(norm.num_groups, norm.eps) for norm in norms} == {(groups, 1e-5)}
    assert [n.num_channels for n in norms] == [c.out_channels for c in layers(model, nn.Conv2d)]
    assert all((n.weight == 1).all() and (n.bias == 0).all() for n in norms)
    assert not layers(model, nn.modules.batchnorm._NormBase)


@pytest.mark.parametrize("side", [8, 9])
def test_option_a_skips_pixels_and_pads_channels_without_parameters(side):
    shortcut, x = PadShortcut(16, 32, groups=2), torch.randn(2, 16, side, side)
    half = (side + 1) // 2
    naive = torch.zeros(2, 32, half, half)
    for row, column in product(range(half), repeat=2):
        naive[:, 32 // 4 : 32 // 4 + 16, row, column] = x[:, :, 2 * row, 2 * column]
    assert torch.equal(shortcut(x), naive)
    assert size(shortcut) == 0


def test_a_block_with_silent_convolutions_is_its_shortcut():
    model = ResNet()
    x = torch.rand(2, 16, 8, 8)
    for block in model.blocks:
        nn.init.zeros_(block.norm2.weight)
    naive = torch.zeros(2, 64, 2, 2)
    naive[:, 8 + 16 : 8 + 16 + 16] = x[:, :, ::4, ::4]
    assert torch.equal(model.blocks(x), naive)


# --- initial weights

# Deviation of a standard normal cut at ±z, z = 2: sqrt(1 - 2 z phi(z) / (Phi(z) - Phi(-z))).
CUT = sqrt(1 - 4 * exp(-2) / sqrt(2 * pi) / erf(2 / sqrt(2)))


def spread_is(weight: torch.Tensor, expected: float) -> bool:
    """Whether the deviation is the expected one within five standard errors."""
    measured = weight.std(correction=0).item()
    return abs(measured / expected - 1) < 5 / sqrt(2 * weight.numel())


def is_haiku(weight: torch.Tensor, sigma: float) -> bool:
    return spread_is(weight, CUT * sigma) and bool(weight.abs().max() <= 2 * sigma * (1 + 1e-6))


def test_kaiming_normal_has_variance_two_over_fan_in():
    model = ResNet(100)
    for layer in layers(model, nn.Conv2d | nn.Linear):
        sigma = sqrt(2 / layer.weight[0].numel())
        assert spread_is(layer.weight, sigma)
        assert layer.weight.abs().max() > 2 * sigma  # nothing is cut
    assert not model.classifier.bias.any()


@pytest.mark.parametrize("make", [lambda: ResNet(100, shortcut="B", init="haiku"), FemnistCNN])
def test_haiku_cuts_a_normal_of_variance_one_over_fan_in(make):
    for layer in layers(make(), nn.Conv2d | nn.Linear):
        assert is_haiku(layer.weight, 1 / sqrt(layer.weight[0].numel()))
        assert layer.bias is None or not layer.bias.any()


def test_initial_weights_of_the_lstm():
    model = ShakespeareLSTM()
    assert is_haiku(model.embedding.weight, 1.0)
    for layer, inputs in ((model.lstm1, 8), (model.lstm2, 256)):
        assert is_haiku(layer.from_x, 1 / sqrt(inputs + 256))
        assert is_haiku(layer.from_h, 1 / sqrt(inputs + 256))
    assert is_haiku(model.classifier.weight, 1 / sqrt(256))
    for layer in (model.lstm1, model.lstm2, model.classifier):
        assert not layer.bias.any()


# --- LSTM


def both(dtype: torch.dtype, length: int, batch: int) -> list[list[torch.Tensor]]:
    """Outputs and gradients of one layer by the plain and by the fused function."""
    layer = LSTM(5, 7).to(dtype)
    nn.init.normal_(layer.bias)
    x = torch.randn(length, batch, 5, dtype=dtype, requires_grad=True)
    direction = torch.randn(length, batch, 7, dtype=dtype)
    results = []
    for function in (plain_lstm, fused_lstm):
        inputs = [x, layer.from_x, layer.from_h, layer.bias]
        outputs = function(*inputs)
        results.append([outputs, *torch.autograd.grad((outputs * direction).sum(), inputs)])
    return results


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("length", "batch"), [(20, 3), (1, 1)])
def test_fused_lstm_equals_the_plain_one(dtype, rounding, length, batch):
    for plain, fused in zip(*both(dtype, length, batch), strict=True):
        assert plain.shape == fused.shape
        torch.testing.assert_close(fused, plain, rtol=0, atol=rounding * plain.abs().max().item())


def plain_network(model: ShakespeareLSTM, ids: torch.Tensor) -> torch.Tensor:
    x = model.embedding(ids).transpose(0, 1)
    for layer in (model.lstm1, model.lstm2):
        x = torch.tanh(plain_lstm(x, *layer.parameters()))
    return x.transpose(0, 1) @ model.classifier.weight.T + model.classifier.bias


def test_the_bound_network_equals_one_of_plain_layers_with_tanh_after_each():
    model = ShakespeareLSTM()
    flat = Flat(model)
    ids, y = example((80,), 90)
    results = []
    for logits in (plain_network(model, ids), model(ids)):
        flat.g.zero_()
        cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
        results.append((logits.detach(), flat.g.clone()))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=0, atol=2e-6 * plain.abs().max().item())


def test_the_forget_gate_starts_at_sigmoid_of_one():
    nothing, bias = torch.zeros(4, 1), torch.tensor([0.0, 0.0, 100.0, 100.0])  # i, f, g, o
    h = fused_lstm(torch.zeros(3, 1, 1), nothing, nothing, bias).flatten()
    c, expected, forget = 0.0, [], 1 / (1 + exp(-1))
    for _ in range(3):
        c = forget * c + 0.5  # sigmoid(0) tanh(100)
        expected.append((exp(2 * c) - 1) / (exp(2 * c) + 1))
    assert h.tolist() == pytest.approx(expected)


def test_a_place_sees_only_what_came_before_and_sequences_do_not_mix():
    model, (ids, _) = ShakespeareLSTM(), example((10,), 90)
    changed = ids.clone()
    changed[1, 6] = (changed[1, 6] + 1) % 90
    with torch.no_grad():
        difference = (model(ids) - model(changed)).abs().amax(dim=2)
    assert not difference[[0, 2, 3]].any() and not difference[1, :6].any()
    assert (difference[1, 6:] > 0).all()
