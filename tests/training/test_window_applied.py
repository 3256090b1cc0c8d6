"""The window average watches: training and the model's weights stay as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import wima
from tests.helpers.modules import Odd, assert_bits, clone, digits, net, train


def test_training_is_bit_identical_with_and_without():
    plain, watched = net(), net()
    average = wima.WindowAverage(watched, window=20)
    loader = [digits()[0][:50]]

    def watch() -> None:
        average.update()
        if average.calls % 10 == 0:
            with average.applied(), torch.random.fork_rng():  # dropout draws
                update_bn(loader, watched)

    optimizers = train(plain, 60), train(watched, 60, after=watch)
    assert_bits(watched.state_dict(), plain.state_dict())
    for a, b in zip(*(o.state_dict()["state"].values() for o in optimizers), strict=True):
        assert_bits(a, b)


def test_an_exception_inside_applied_restores_every_bit():
    model = net()
    average = wima.WindowAverage(model, window=5)
    train(model, 12, after=average.update)
    with torch.no_grad():  # bits that arithmetic would not keep
        model[0].weight[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    before = clone(model)
    with pytest.raises(ZeroDivisionError), average.applied():  # noqa: PT012
        assert not torch.equal(model[4].weight, before["4.weight"])
        model(digits()[0])  # in training mode: moves BatchNorm's statistics and its counter
        model[4].weight.data.zero_()
        raise ZeroDivisionError
    assert_bits(model.state_dict(), before)
    average.update()  # goes on


def test_compiled_and_data_parallel_modules_are_unwrapped(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        inner = net()
        wrapped = torch.compile(nn.parallel.DistributedDataParallel(inner), backend="eager")
        averages = [wima.WindowAverage(model, 3) for model in (inner, wrapped)]
        train(wrapped, 5, after=lambda: [average.update() for average in averages])
        assert averages[1].names == averages[0].names
        assert set(averages[0].names) == {n for n in inner.state_dict() if "num" not in n}
        assert_bits(averages[1].model_state(), averages[0].model_state())
        with averages[1].applied() as model:
            assert model is wrapped
            assert_bits(inner.state_dict(), averages[1].model_state())
        other = net()
        averages[1].copy_to(nn.DataParallel(other))
        assert_bits(other.state_dict(), averages[0].model_state())
    finally:
        torch.distributed.destroy_process_group()


def test_applied_between_forward_and_backward_changes_no_gradient():
    gradients = []
    for watched in (False, True):
        model = net()
        average = wima.WindowAverage(model, 2)
        train(model, 3, after=average.update)
        torch.manual_seed(0)
        loss = model(digits()[0]).square().mean()
        if watched:
            with average.applied():
                pass
        model.zero_grad()
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_windows_nest_and_no_update_is_taken_within():
    model = Odd([((3,), torch.float32, "trained")])
    average = wima.WindowAverage(model, [2, 5])
    for _ in range(6):
        model.step()
        average.update()
    last, means = model.t0.detach().clone(), {w: average.tensors(w)["t0"] for w in (2, 5)}
    with average.applied(5):
        with average.applied(2):
            assert torch.equal(model.t0, means[2])
        assert torch.equal(model.t0, means[5])
        with pytest.raises(wima.UsageError, match="would average the average"):
            average.update()
    assert torch.equal(model.t0, last) and average.n_averaged == 5
