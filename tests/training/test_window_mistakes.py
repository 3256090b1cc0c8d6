"""Mistakes with a window average are named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wima
from tests.helpers.modules import Odd, net


def frozen() -> nn.Module:
    return Odd([((2,), torch.float32, "frozen")])


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (net, {"window": 0}, "window must be one or more positive integers, got 0"),
        (net, {"window": []}, "got none"),
        (net, {"every": 1.5}, "every must be a positive integer, got 1.5"),
        (net, {"shape": "sqr"}, "shape='sqr' was removed"),
        (net, {"parts": "4.wieght"}, "Unknown part '4.wieght'; did you mean '4.weight'"),
        (net, {"parts": "1.num_batches_tracked"}, "no floating-point tensor"),
        (frozen, {}, "no trainable parameter"),
        (lambda: nn.LazyLinear(3), {}, "weight has no shape yet"),
        (
            lambda: nn.ParameterList([torch.ones(2, dtype=torch.complex64)]),
            {},
            "0 is torch.complex64",
        ),
        (lambda: "model", {}, "Expected a torch module, got str"),
        (net, {"folder": __file__}, "cannot hold"),
        (net, {"folder": "/proc", "window": 10}, "cannot hold"),
    ],
)
def test_mistakes_are_named(model, options, message):
    with pytest.raises(wima.UsageError, match=message):
        wima.WindowAverage(model(), **options)


def test_a_file_that_the_disk_cannot_hold_is_refused_at_once(tmp_path):
    with pytest.raises(wima.UsageError, match=r"cannot hold \d+\.\d GB of past models"):
        wima.WindowAverage(net(), window=10**12, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_window_that_memory_cannot_hold_is_refused_at_once(monkeypatch):
    needed = r"The last \d+ models need \d+\.\d GB of memory, but"
    with pytest.raises(wima.UsageError, match=rf"{needed} only \d+\.\d GB is free\. .*folder="):
        wima.WindowAverage(net(), window=10**12)
    with pytest.raises(wima.UsageError, match=needed):
        wima.ArrayWindow(window=10**12).update(torch.ones(1000))
    monkeypatch.setattr("wima.storage.ring.memory_available", lambda: float("inf"))
    with pytest.raises(wima.UsageError, match=f"{needed} that much is not free"):
        wima.WindowAverage(net(), window=10**12)


def test_changes_of_the_model_are_named():
    model = Odd([((2,), torch.float32, "trained"), ((3,), torch.float32, "frozen")])
    average = wima.WindowAverage(model, 3)
    model.t1.requires_grad_(True)
    with pytest.raises(wima.UsageError, match="t1 was frozen and is now trained"):
        average.update()
    model.t1.requires_grad_(False)
    model.double()
    with pytest.raises(wima.UsageError, match=r"t0 was float32 \(2,\).*is now float64 \(2,\)"):
        average.update()
    with pytest.raises(wima.UsageError, match="does not fit the other model"):
        average.copy_to(nn.Linear(2, 2))
    with pytest.raises(wima.UsageError, match="window=4: only the last 3 models"):
        average.tensors(4)
