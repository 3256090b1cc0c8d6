"""In a training loop, the gradients that the optimizer has used choose the window."""

from __future__ import annotations

import copy
import re
import runpy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings as how, strategies as st
from torch import Tensor, nn

import wima
from tests.helpers.gradients import AUTO, KINDS, Reference, set_gradients, step
from tests.helpers.modules import Odd, assert_bits, assert_same, digits, naive_mean, net
from tests.helpers.paths import ROOT
from tests.training.test_window_average import tensors as kinds_of_tensors


@how(max_examples=15, deadline=None)
@given(kinds_of_tensors, st.integers(1, 4), st.sampled_from([None, "*"]), st.integers(0, 2**32 - 1))
def test_the_window_is_that_of_the_rule_and_the_average_the_mean_over_it(kinds, every, parts, seed):
    torch.manual_seed(seed)
    model = Odd([((6,), torch.float32, "trained"), *kinds])
    average, copies = AUTO(model, every=every, parts=parts), []
    reference = Reference(average, model)
    assert average.n_averaged == 0 and average.windows == ()
    assert_bits(average.model_state(), model.state_dict())
    for number in range(120):
        gradients = step(model)
        if number % every == 0:
            at_newest = gradients  # the first step from the model that was taken in
        average.update()
        if (number + 1) % every == 0:
            reference.update(at_newest)
            copies.append(copy.deepcopy(model))
    reference.assert_same(average)
    expected = naive_mean(copies, average.n_averaged)
    if parts is None:
        expected |= {n: p for n, p in model.named_parameters() if not p.requires_grad}
    assert_same(average.model_state(), expected)


def test_around_an_optimum_the_window_grows_and_on_the_way_it_is_short():
    torch.manual_seed(0)

    def used(lr: float) -> int:
        model = nn.ParameterList([torch.full((200,), 100.0)])
        average = AUTO(model)
        for _ in range(200):
            set_gradients(model)
            with torch.no_grad():
                model[0] -= lr * model[0].grad
            average.update()
        return average.n_averaged

    assert used(0.5) > 10 * used(0.001)


def backward(loss: Callable[[], Tensor], model: nn.Module) -> None:
    loss().backward()


def accumulated(loss: Callable[[], Tensor], model: nn.Module) -> None:
    for _ in range(3):
        (loss() / 3).backward()


def clipped(loss: Callable[[], Tensor], model: nn.Module) -> None:
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


NESTEROV = partial(torch.optim.SGD, momentum=0.9, nesterov=True, foreach=False)


@pytest.mark.parametrize(
    ("gradients", "optimizer"),
    [
        (backward, torch.optim.SGD),
        (backward, NESTEROV),
        (clipped, torch.optim.Adam),
        (accumulated, torch.optim.Adam),
    ],
)
def test_gradients_are_those_that_the_optimizer_saw_and_training_does_not_change(
    gradients, optimizer
):
    x, y = digits()

    def train(watched: bool) -> nn.Module:
        model, draw = net(), torch.Generator().manual_seed(1)
        steps = optimizer(model.parameters(), lr=0.01)
        average = AUTO(model)
        reference = Reference(average, model)

        def loss() -> Tensor:
            batch = torch.randint(len(x), (8,), generator=draw)
            return nn.functional.cross_entropy(model(x[batch]), y[batch])

        for _ in range(60):
            steps.zero_grad()
            gradients(loss, model)
            seen = {name: p.grad.clone() for name, p in model.named_parameters()}
            steps.step()
            if watched:
                average.update()
                reference.update(seen)
        if watched:
            reference.assert_same(average)
        return model

    assert_bits(train(True).state_dict(), train(False).state_dict())


def scaled(scaler: torch.amp.GradScaler) -> wima.WindowAverage:
    """SGD in double precision with a gradient scaler; every fifth loss is infinite."""
    torch.manual_seed(0)
    model = Odd(KINDS[1:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AUTO(model)
    reference = Reference(average, model)
    for number in range(40):
        optimizer.zero_grad()
        factor = float("inf") if number % 5 == 2 else 1.0
        scaler.scale((model.t0 - torch.randn(2, 2).double()).square().sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        finite = bool(model.t0.grad.isfinite().all())
        assert finite == (factor == 1.0)
        average.update()
        reference.update({"t0": model.t0.grad} if finite else None)
    reference.assert_same(average)
    return average


def test_steps_that_a_gradient_scaler_skipped_are_not_judged_and_its_scale_changes_nothing():
    scaler = partial(torch.amp.GradScaler, "cpu", growth_interval=2)
    averages = [scaled(scaler(init_scale=scale)) for scale in (1.0, 2.0**16)]
    assert averages[0].n_averaged > 1
    assert_bits(*(average.model_state() for average in averages))


def test_sparse_gradients_and_parameters_without_one_count_as_zeros():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(9, 2, sparse=True), nn.Linear(2, 1), nn.Linear(3, 1)])
    average = AUTO(model)
    reference = Reference(average, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        model[1](model[0](torch.randint(9, (3,)))).square().mean().backward()
        optimizer.step()
        average.update()
        used = {n: p.grad.to_dense() for n, p in model.named_parameters() if p.grad is not None}
        assert model[0].weight.grad.is_sparse and model[2].weight.grad is None
        reference.update(used)
    reference.assert_same(average)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_were_zeroed_too_early_are_an_error(set_to_none):
    model = Odd(KINDS)
    average = AUTO(model)
    step(model)
    average.update()  # the gradients at the initial model are not needed
    step(model)
    model.zero_grad(set_to_none=set_to_none)
    with pytest.raises(wima.UsageError, match=r"after optimizer.step\(\) and before zero_grad"):
        average.update()
    assert average.calls == 1
    step(model)
    average.update()
    model.zero_grad(set_to_none=set_to_none)
    average.update()  # once there were some, a step may be without
    assert average.calls == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.bfloat16}, "keeps float64 sums in memory instead of models: omit dtype"),
        ({"folder": "past"}, "omit folder"),
        ({"folder": "past", "dtype": torch.float16}, "omit dtype, folder"),
        ({"window": "automatic"}, "one or more positive integers, got 'automatic'"),
        ({"window": [10, "auto"]}, "one or more positive integers, got 'auto'"),
    ],
)
def test_options_that_need_past_models_are_refused(options, message):
    with pytest.raises(wima.UsageError, match=message):
        AUTO(net(), **options)


def test_other_windows_than_the_chosen_one_cannot_be_asked_for():
    average = AUTO(net())
    for ask in (average.tensors, average.model_state, lambda window: average.copy_to(net(), 50)):
        with pytest.raises(wima.UsageError, match="window=50: window='auto' keeps sums"):
            ask(50)
    with pytest.raises(wima.UsageError, match="keeps sums"), average.applied(50):
        pass
    with pytest.raises(wima.UsageError, match="by gradients, and arrays have none"):
        wima.ArrayWindow("auto")


def test_the_average_is_put_into_the_model_and_taken_out_again():
    torch.manual_seed(0)
    model = Odd(KINDS)
    average = AUTO(model)
    for _ in range(30):
        step(model)
        average.update()
    before, mean = copy.deepcopy(model.state_dict()), average.model_state()
    with average.applied():
        assert_bits(model.state_dict(), mean)
        with pytest.raises(wima.UsageError, match="inside applied"):
            average.update()
    assert_bits(model.state_dict(), before)
    other = copy.deepcopy(model)
    average.copy_to(other)
    assert_bits(other.state_dict(), mean)


def test_sums_are_kept_on_the_device_that_was_asked_for():
    model = net()
    average = AUTO(model, device="meta")  # stands in for a GPU
    average.update()
    rows = average.state_dict()["rows"].values()
    assert {row.device.type for row in rows if len(row) > 1000} == {"meta"}


def test_the_example_shows_all_models(capsys):
    runpy.run_path(str(ROOT / "examples" / "training_loop.py"))
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"step 600: plain \S+, wima10 \S+, wima100 \S+, auto \S+ .W = \d+.", last)
    plain, auto = (float(re.search(rf"{name} ([\d.]+)", last)[1]) for name in ("plain", "auto"))
    assert plain > 0.8 and auto > 0.9  # ten classes
