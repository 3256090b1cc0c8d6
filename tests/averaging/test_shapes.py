"""WIMA with a shape is the steps of the window at a learning rate that decays in this shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings as how, strategies as st

from tests.helpers import pseudocode
from wima import WIMA
from wima.averaging import BY_NAME, Watch, named
from wima.core.shapes import SHAPES
from wima.runs.settings import as_choice
from wima.storage import manifests
from wima.storage.segments import Segments

OTHERS = [shape for shape in SHAPES if shape != "linear"]
WALKS = st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=2, max_size=12)


def walk(count: int = 20, d: int = 5) -> list[torch.Tensor]:
    """The initial model, then `count` more."""
    steps = torch.randn(count + 1, d, generator=torch.Generator().manual_seed(0))
    return list(steps.cumsum(0))


def fed(watch: Watch, models: list[torch.Tensor]) -> Watch:
    for w in models:
        watch.update(w)
    return watch


@how(max_examples=25, deadline=None)
@given(WALKS, st.integers(1, 14), st.sampled_from(list(SHAPES)))
def test_scaled_steps_from_the_model_before_the_window_are_the_average(walked, window, shape):
    first, *models = torch.tensor(walked, dtype=torch.float64)
    watch = Watch({"average": WIMA(window, shape=shape)}, first)
    expected = pseudocode.replayed(models, window, shape, w0=first)
    for w, replayed in zip(models, expected, strict=True):
        watch.update(w)
        torch.testing.assert_close(watch.vector("average"), replayed, rtol=0, atol=1e-12)


def test_linear_is_the_default_and_bit_for_bit_the_plain_mean():
    assert WIMA(7) == WIMA(7, shape="linear") and WIMA(7).name == "wima7"
    first, *models = walk()
    watch = fed(Watch({"wima": WIMA(7)}, first), models)
    total = torch.zeros(len(first), dtype=torch.float64)
    for t, w in enumerate(models):  # the running sum, as it is defined
        total += w
        total -= models[t - 7] if t >= 7 else 0
    assert torch.equal(watch.vector("wima"), (total / 7).float())
    plain = sum(w.double() for w in models[-7:]) / 7
    assert torch.equal(watch.ring.mean(7), plain.float())


@pytest.mark.parametrize("shape", OTHERS)
def test_before_the_first_round_it_is_the_initial_model(shape):
    (w,) = walk(0)
    assert torch.equal(Watch({"average": WIMA(3, shape=shape)}, w).vector("average"), w)


def test_all_shapes_and_windows_share_one_ring_and_keep_nothing_else():
    first, *models = walk()
    averagers = [WIMA(window, shape=shape) for window in (3, 6) for shape in OTHERS]
    watch = fed(Watch(named(averagers), first), models)
    assert list(watch.states)[1:] == ["wima3-sqrt", "wima3-cosine", "wima6-sqrt", "wima6-cosine"]
    assert watch.ring.length == 6
    assert all(watch.states[a.name] is watch.ring for a in averagers)


@pytest.mark.parametrize("shape", OTHERS)
def test_in_bfloat16_it_is_the_average_of_the_rounded_models(shape):
    first, *models = walk()
    watch = fed(Watch({"average": WIMA(6, shape=shape)}, first, dtype=torch.bfloat16), models)
    rounded = [w.bfloat16().double() for w in models]
    expected = pseudocode.replayed(rounded, 6, shape, w0=first.double())[-1]
    assert watch.vector("average").dtype == torch.float32
    torch.testing.assert_close(watch.vector("average"), expected.float())


@pytest.mark.parametrize("shape", OTHERS)
def test_a_part_is_averaged_and_the_other_one_is_the_newest_model(shape):
    first, *models = walk()
    averagers = named([WIMA(6, part, shape) for part in ("all", "classifier")])
    classifier = torch.tensor([False, False, True, True, True])
    watch = fed(Watch(averagers, first, mask=lambda part: classifier), models)
    part = watch.vector(f"wima6-{shape}-classifier")
    assert torch.equal(part[classifier], watch.vector(f"wima6-{shape}")[classifier])
    assert torch.equal(part[~classifier], models[-1][~classifier])


@pytest.mark.parametrize("cut", [0, 1, 4, 13])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_restored_watch_goes_on_and_the_ring_is_saved_once(tmp_path, mapped, cut):
    first, *models = walk()
    averagers = named([WIMA(6, shape=shape) for shape in SHAPES])

    def watch(folder: Path) -> tuple[Watch, Segments]:
        store = Segments(folder)
        return Watch(averagers, first, mapped=store if mapped else None), store

    whole = fed(watch(tmp_path / "whole")[0], models)
    early, store = watch(tmp_path / "cut")
    tensors, rings = {}, {}
    averages = fed(early, models[:cut]).encode(tensors, rings)
    assert list(rings) == ["past"]
    content = {"averages": averages, "identity": {}, "extra": {}}
    manifests.save(store, cut, tensors, rings, **content)
    late, store = watch(tmp_path / "cut")
    ((saved, *_), _) = manifests.find(store)
    late.load(saved.content, store, lambda name: store.read(saved.content["vectors"], name))
    for name, vector in early.vectors().items():
        assert torch.equal(late.vector(name), vector)
    for name, vector in fed(late, models[cut:]).vectors().items():
        assert torch.equal(vector, whole.vector(name))


def test_settings_name_the_shape():
    choice = as_choice("wima:window=100:shape=sqrt")
    assert choice.make("averager", BY_NAME) == WIMA(100, shape="sqrt")
