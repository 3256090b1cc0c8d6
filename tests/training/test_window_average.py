"""The window average of a model is the mean of its last states, in any training loop."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings as how, strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import wima
from tests.helpers.modules import Odd, assert_bits, assert_same, digits, naive_mean, net, train

STEPS = 200

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)

kinds = st.sampled_from(["trained", "trained", "frozen", "buffer"])

tensors = st.lists(st.tuples(shapes, st.sampled_from(DTYPES), kinds), min_size=1, max_size=5)


@how(max_examples=20, deadline=None)
@given(tensors, st.sets(st.integers(1, 50), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_the_average_is_the_mean_of_deep_copies(kinds, windows, seed):
    torch.manual_seed(seed)
    model = Odd([((2,), torch.float32, "trained"), *kinds])
    average, copies = wima.WindowAverage(model, sorted(windows)), []
    for step in range(1, STEPS + 1):
        model.step()
        average.update()
        copies = [*copies, copy.deepcopy(model)][-50:]
        if step in (1, 7, 50, STEPS - 1, STEPS):
            for window in windows:
                assert_same(average.model_state(window), naive_mean(copies, window))


def test_every_window_of_one_ring_is_a_mean_of_deep_copies():
    torch.manual_seed(0)
    model = Odd([((3, 2), torch.float32, "trained"), ((4,), torch.float32, "buffer")])
    average, copies = wima.WindowAverage(model, 50), []
    for _ in range(STEPS):
        model.step()
        average.update()
        copies = [*copies, copy.deepcopy(model)][-50:]
    for window in range(1, 51):
        assert_same(average.model_state(window), naive_mean(copies, window))


def test_eq_7_the_average_is_the_last_steps_with_a_falling_learning_rate():
    window, model, walk = 8, net().double(), []
    average = wima.WindowAverage(model, window, use_buffers=False)

    def note() -> None:
        average.update()
        walk.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    train_in_double(model, 30, note)
    steps = [before - after for before, after in pairwise(walk)]  # w <- w - u
    start = len(walk) - 1 - window  # the model before the window
    expected = walk[start].clone()
    for j in range(window):
        expected -= (window - j) / window * steps[start + j]
    found = torch.cat([t.reshape(-1) for t in average.tensors().values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def train_in_double(model: nn.Module, steps: int, after) -> None:
    x, y = digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for k in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[k : k + 32].double()), y[k : k + 32]).backward()
        optimizer.step()
        after()


def test_a_window_as_long_as_training_is_torchs_averaged_model():
    model = net()
    average, theirs = wima.WindowAverage(model, 100), AveragedModel(model, use_buffers=True)
    train(model, 40, after=lambda: (average.update(), theirs.update_parameters(model)))
    ours = copy.deepcopy(model)
    average.copy_to(ours)
    loader = list(digits()[0].split(200))
    for check in (lambda: None, lambda: [update_bn(loader, m) for m in (ours, theirs)]):
        check()
        for name, tensor in theirs.module.state_dict().items():
            if "num_batches" not in name:  # theirs averages the counter in integers
                torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=2e-5, atol=2e-6)


def test_without_use_buffers_they_are_the_models():
    model = net()
    average = wima.WindowAverage(model, 10, use_buffers=False)
    train(model, 20, after=average.update)
    state = average.model_state()
    assert torch.equal(state["1.running_mean"], model[1].running_mean)
    assert not torch.equal(state["1.weight"], model[1].weight)


def test_only_each_kth_update_counts():
    model = Odd([((3,), torch.float32, "trained")])
    average, copies = wima.WindowAverage(model, 4, every=3), []
    before = average.tensors()
    for step in range(1, 30):
        model.step()
        average.update()
        copies += [copy.deepcopy(model)] if step % 3 == 0 else []
        if copies:
            expected = naive_mean(copies, 4)["t0"]
            torch.testing.assert_close(average.tensors()["t0"], expected)
        else:
            assert torch.equal(average.tensors()["t0"], model.t0)
    assert not torch.equal(before["t0"], model.t0)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ("t*", ["t0", "t1"]),
        ("t1", ["t1"]),
        ("inner", ["t0"]),  # the second name of t0
        (["inner.tied", "t1"], ["t0", "t1"]),
        ("*", ["t0", "t1"]),  # frozen ones too, but no integers
    ],
)
def test_parts_are_names_patterns_or_modules(parts, names):
    model = Odd([((2,), torch.float32, "trained"), ((3,), torch.float64, "frozen")])
    average = wima.WindowAverage(model, 2, parts=parts)
    assert average.names == names
    for _ in range(3):
        model.step()
        average.update()
    state = average.model_state()
    assert torch.equal(state["t0"], model.t0) == ("t0" not in names)
    assert torch.equal(state["t0"], state["inner.tied"])


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}])
def test_past_models_in_a_file_are_past_models_in_memory(tmp_path, options):
    model = Odd([((5,), torch.float32, "trained"), ((2, 2), torch.float64, "trained")])
    places = ({}, {"folder": tmp_path / "new"})
    averages = [wima.WindowAverage(model, 7, **options, **place) for place in places]
    for _ in range(20):
        model.step()
        for average in averages:
            average.update()
    assert_bits(averages[1].model_state(5), averages[0].model_state(5))
    assert list((tmp_path / "new").iterdir()) == []  # the file has no name


def test_in_bfloat16_the_average_is_that_of_rounded_models():
    model = Odd([((50,), torch.float32, "trained")])
    average, rounded = wima.WindowAverage(model, 9, dtype=torch.bfloat16), []
    for _ in range(20):
        model.step()
        average.update()
        rounded.append(model.t0.detach().bfloat16().double())
    expected = torch.stack(rounded[-9:]).mean(0).float()
    torch.testing.assert_close(average.tensors()["t0"], expected, rtol=2e-7, atol=1e-8)
    assert average.tensors()["t0"].dtype == torch.float32


def test_updates_allocate_nothing_after_the_first():
    model = net()
    average = wima.WindowAverage(model, 3)
    average.update()
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(5):
            average.update()
    copies = [event for event in profile.events() if event.name == "aten::copy_"]
    assert len(copies) >= 5 * len(average.names)
    assert [e.name for e in profile.events() if e.self_cpu_memory_usage > 0] == []


def test_other_devices_get_one_vector_and_one_transfer():
    model = net()
    average = wima.WindowAverage(model, 3, device="meta")  # stands in for a GPU
    for _ in range(4):
        average.update()
    (stage,) = average._past._stages.values()
    assert stage.device.type == "cpu" and stage.numel() == sum(
        t.numel() for n, t in model.state_dict().items() if "num_batches" not in n
    )
    on_meta = wima.WindowAverage(net().to("meta"), 3, device="meta")
    on_meta.update()
    with on_meta.applied() as applied:
        assert all(p.is_meta for p in applied.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is at hand")
def test_a_model_on_a_gpu_is_averaged_on_the_cpu():
    model = net().to("cuda")
    average = wima.WindowAverage(model, 3)
    average.update()
    assert_bits(average.model_state(), model.state_dict())
