"""Several averages of one sequence: their rules, the ring they share, and their saved states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima import EMA, LAWA, SWA, WIMA, PowerEMA, UsageError
from wima.averaging import Averages, named
from wima.runs.settings import as_choice
from wima.storage import manifests
from wima.storage.segments import Segments

EVERY_RULE = [
    WIMA(6),
    WIMA(6, "classifier"),
    WIMA(6, buckets=2),
    WIMA(0.3),
    WIMA("auto"),
    EMA(0.9),
    PowerEMA(),
    LAWA(k=3, every=2),
    SWA(start=2, cycle=3),
]


def walk(count: int = 20, d: int = 5) -> list[torch.Tensor]:
    """The initial model, then `count` more."""
    steps = torch.randn(count + 1, d, generator=torch.Generator().manual_seed(0))
    return list(steps.cumsum(0))


def fed(averages: Averages, models: list[torch.Tensor]) -> Averages:
    for w in models:
        averages.update(w, w.flip(0))
    return averages


def test_the_default_is_bit_for_bit_the_plain_mean():
    first, *models = walk()
    averages = fed(Averages({"wima": WIMA(7)}, first), models)
    total = torch.zeros(len(first), dtype=torch.float64)
    for t, w in enumerate(models):  # the running sum, as it is defined
        total += w
        total -= models[t - 7] if t >= 7 else 0
    assert torch.equal(averages.vector("wima"), (total / 7).float())
    plain = sum(w.double() for w in models[-7:]) / 7
    assert torch.equal(averages.ring.mean(7), plain.float())


def test_options_choose_a_rule_once(monkeypatch):
    asked = []
    rule = WIMA.rule
    monkeypatch.setattr(WIMA, "rule", lambda self: asked.append(self) or rule(self))
    first, *models = walk()
    averagers = [WIMA(6), WIMA(0.3), WIMA("auto")]
    fed(Averages(named(averagers), first), models).vectors()
    assert asked == averagers


@pytest.mark.parametrize("cut", [0, 1, 4, 13])
@pytest.mark.parametrize("mapped", [False, True])
def test_restored_averages_go_on_and_the_ring_is_saved_once(tmp_path, mapped, cut):
    first, *models = walk()
    averagers, mask = named(EVERY_RULE), torch.tensor([False, False, True, True, True])

    def averages(folder: Path) -> tuple[Averages, Segments]:
        store = Segments(folder)
        how = {"mask": lambda part: mask, "mapped": store if mapped else None}
        return Averages(averagers, first, **how), store

    whole = fed(averages(tmp_path / "whole")[0], models)
    early, store = averages(tmp_path / "cut")
    tensors, rings = {}, {}
    states = fed(early, models[:cut]).encode(tensors, rings)
    assert set(rings) == {"past", "average lawa3x2.1"}
    content = {"averages": states, "identity": {}, "extra": {}}
    manifests.save(store, cut, tensors, rings, **content)
    late, store = averages(tmp_path / "cut")
    ((saved, *_), _) = manifests.find(store)
    late.load(saved.content, store, lambda name: store.read(saved.content["vectors"], name))
    for name, vector in early.vectors().items():
        assert torch.equal(late.vector(name), vector)
    for name, vector in fed(late, models[cut:]).vectors().items():
        assert torch.equal(vector, whole.vector(name))


REMOVED = r"='sqrt' was removed, .* omit it for the mean, or use another average, such as EMA\."


def test_the_removed_shapes_are_refused_and_the_default_is_not():
    assert WIMA(7, shape="linear") == WIMA(7)
    assert as_choice("wima:window=7:shape=linear").make("averagers") == WIMA(7)
    with pytest.raises(UsageError, match="WIMA.shape" + REMOVED):
        as_choice("wima:window=100:shape=sqrt").make("averagers")
    with pytest.raises(UsageError, match="shape" + REMOVED):
        wima.WindowAverage(nn.Linear(1, 1), shape="sqrt")
    with pytest.raises(UsageError, match="shape" + REMOVED):
        wima.ArrayWindow(shape="sqrt").update(np.ones(2))
