"""A model is one flat vector: views, layout, masks, and models that are more than weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import wima
from wima.algorithms.server_opt import SGD
from wima.core.vector import Flat
from wima.data.federated import FederatedData
from wima.models import MLP, SmallCNN
from wima.simulation.local import batches
from wima.simulation.options import LocalSGD

FEATURES, CLASSES = 6, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make_data(sizes=(5, 8, 11, 4), spread: float = 1.0, dtype=np.float32) -> FederatedData:
    random = np.random.default_rng(0)
    x = (spread * random.normal(size=(sum(sizes), FEATURES))).astype(dtype)
    y = random.integers(0, CLASSES, sum(sizes))
    return FederatedData(x, y, np.append(0, np.cumsum(sizes)), classes=CLASSES)


def with_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def without_bias() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 5, bias=False), nn.ReLU(), nn.Linear(5, CLASSES, bias=False)
    )


def tied() -> nn.Module:
    first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES)
    )


def frozen() -> nn.Module:
    model = normed()
    model[0].requires_grad_(False)
    return model


MODELS = [with_bias, without_bias, tied, normed, frozen]


def naive_rounds(model, data, cohorts, sgd: LocalSGD, seed: int, lr: float, weighting="examples"):
    """FedAvg with deep copies and state_dicts: the floating numbers after every round, by name."""
    model, states = copy.deepcopy(model), []
    for t, cohort in enumerate(cohorts):
        ends, weights = [], []
        for i in cohort:
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD([p for p in local.parameters() if p.requires_grad], lr=lr)
            for batch in batches(data, i, sgd, seed, t):
                optimizer.zero_grad()
                cross_entropy(local(batch.x), batch.y).backward()
                optimizer.step()
            ends.append(local.state_dict())
            weights.append(float(data.size(i)) if weighting == "examples" else 1.0)
        mean = {
            name: sum(p * end[name] for p, end in zip(weights, ends, strict=True)) / sum(weights)
            for name, value in ends[0].items()
            if value.is_floating_point()
        }
        model.load_state_dict(mean, strict=False)
        states.append(mean)
    return states


@pytest.mark.parametrize("make", [*MODELS, lambda: MLP(FEATURES, 5, CLASSES)])
def test_writing_w_changes_the_output_of_the_module(make):
    flat, other = Flat(make()), make()
    x = torch.randn(7, FEATURES)
    values = dict(other.named_parameters()) | dict(other.named_buffers())
    assert not torch.equal(flat.module(x), other(x))
    flat.w.copy_(torch.cat([values[name].detach().flatten() for name in flat.layout.slices]))
    assert torch.equal(flat.module.eval()(x), other.eval()(x))


@pytest.mark.parametrize("make", MODELS)
def test_backward_fills_g_with_the_gradient_of_an_unbound_copy(make):
    model = make()
    unbound, flat = copy.deepcopy(model), Flat(model)
    x, y = torch.randn(7, FEATURES), torch.arange(7) % CLASSES
    for module in (unbound, flat.module):
        cross_entropy(module(x), y).backward()
    expected = [p.grad.flatten() for p in unbound.parameters() if p.requires_grad]
    assert torch.equal(flat.g, torch.cat(expected)) and flat.g.norm() > 0
    flat.g.zero_()  # the same memory: the module's own gradients are gone
    assert all(not p.grad.any() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("make", MODELS)
def test_unflattened_vector_is_the_state_dict(make):
    flat = Flat(make())
    flat.w.normal_()
    named, state = flat.layout.unflatten(flat.w), flat.module.state_dict()
    for name, tensor in named.items():
        assert torch.equal(tensor, state[name]), name
    floating = {name for name, tensor in state.items() if tensor.is_floating_point()}
    pointers = {tensor.data_ptr() for tensor in named.values()}
    # What is left out is the second name of a tied parameter.
    assert all(state[name].data_ptr() in pointers for name in floating - named.keys())
    other = make()
    other.load_state_dict(named, strict=False)
    assert torch.equal(Flat(other).w, flat.w)


@pytest.mark.parametrize("make", MODELS)
def test_slices_tile_the_vector_and_what_is_not_trained_comes_last(make):
    flat = Flat(make())
    covered = torch.zeros(len(flat.w))
    for part in flat.layout.slices.values():
        covered[part] += 1
    assert torch.equal(covered, torch.ones(len(flat.w))) and flat.layout.size == len(flat.w)
    trains = {name: p.numel() for name, p in flat.module.named_parameters() if p.requires_grad}
    assert flat.layout.trained == sum(trains.values()) == len(flat.g)
    for name, part in flat.layout.slices.items():
        assert (part.start < flat.layout.trained) == (name in trains), name


def test_frozen_parameters_and_floating_buffers_are_in_the_vector_and_integer_ones_are_not():
    slices = Flat(frozen()).layout.slices
    assert {"0.weight", "0.bias", "1.running_mean", "1.running_var"} <= slices.keys()
    assert "1.num_batches_tracked" not in slices


@pytest.mark.parametrize("make", [*MODELS, SmallCNN])
def test_masks_partition_the_vector_into_the_last_linear_layer_and_the_rest(make):
    flat = Flat(make())
    classifier, features = flat.layout.mask("classifier"), flat.layout.mask("features")
    assert torch.equal(classifier, ~features) and flat.layout.mask("all").all()
    last = [m for m in flat.module.modules() if isinstance(m, nn.Linear)][-1]
    flat.w.zero_()
    flat.w[classifier] = 1
    assert all(bool((p == 1).all()) for p in last.parameters())
    assert int(flat.w.sum()) == sum(p.numel() for p in last.parameters())


def test_parts_that_cannot_be_are_refused():
    layout = Flat(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())).layout
    with pytest.raises(wima.UsageError, match=r"part='classifier' needs .* no torch\.nn\.Linear"):
        layout.mask("classifier")
    with pytest.raises(wima.UsageError, match="one of all, classifier, features, got 'head'"):
        layout.mask("head")
    convolution = nn.Conv1d(FEATURES, CLASSES, 1)
    conv = nn.Sequential(nn.Unflatten(1, (FEATURES, 1)), convolution, nn.Flatten())
    data = make_data()
    task = wima.make_task(conv, data, (data.x, data.y))
    with pytest.raises(wima.UsageError, match=r"no torch\.nn\.Linear layer"):
        wima.simulate(
            task, rounds=1, clients_per_round=1, lr=0.1, averagers=[wima.WIMA(2, "classifier")]
        )


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("make", MODELS)
def test_models_train_and_average_like_deep_copies_and_state_dicts(make, weighting):
    model, data = make().double(), make_data(dtype=np.float64)
    task = wima.make_task(model, data, (data.x, data.y))
    settings = {"rounds": 4, "clients_per_round": 3, "lr": 0.2, "batch_size": 3, "seed": 5}
    simulation = wima.simulate(task, weighting=weighting, engine="serial", **settings)
    layout, models, cohorts = task.layout, [], []
    for record in simulation:
        models.append(simulation.w.clone())
        cohorts.append(record.cohort)
    expected = naive_rounds(model, data, cohorts, LocalSGD(batch_size=3), 5, 0.2, weighting)
    for w, state in zip(models, expected, strict=True):
        for name in layout.slices:
            torch.testing.assert_close(layout.view(w, name), state[name], rtol=0, atol=1e-11)
    begin, end = (layout.unflatten(w) for w in (Flat(copy.deepcopy(model)).w, models[-1]))
    moved = {name for name in layout.slices if not torch.equal(begin[name], end[name])}
    fixed = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert moved == layout.slices.keys() - fixed


def test_running_variance_stays_positive_under_server_momentum():
    data = make_data(spread=0.01)  # the variance falls from 1 to nearly 0: momentum would overshoot
    task = wima.make_task(normed, data, (data.x, data.y))
    settings = {"rounds": 20, "clients_per_round": 3, "lr": 0.05, "batch_size": 4}
    simulation = wima.simulate(task, server_opt=SGD(lr=1, momentum=0.9), **settings)
    variance, overshoot = torch.ones(5), torch.zeros(5)
    low, v = float("inf"), torch.zeros(5)
    imagined = variance.clone()
    for _ in simulation:
        now = task.layout.view(simulation.w, "1.running_var").clone()
        low = min(low, float(now.min()))
        v = 0.9 * v + imagined * (1 - now / variance)  # the same decay as a pseudo-gradient
        imagined, variance = imagined - v, now
        overshoot = torch.minimum(overshoot, imagined)
    assert overshoot.min() < 0 < low


def test_batch_counters_do_not_leak_from_one_client_to_the_next():
    data, model = make_data(), normed()
    task = wima.make_task(model, data, (data.x, data.y))
    bound = task.workspace.module[1]
    seen = []
    bound.register_forward_hook(lambda layer, *_: seen.append(int(layer.num_batches_tracked)))
    wima.run(task, rounds=3, clients_per_round=2, lr=0.1, engine="serial", eval_every=0)
    assert set(seen) == {1} and len(seen) > 3  # counted up inside a pass, back at 0 before the next
    assert int(bound.num_batches_tracked) == int(model[1].num_batches_tracked) == 0


def shared_memory() -> nn.Module:
    first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    second.weight = nn.Parameter(first.weight.detach())
    return nn.Sequential(first, second)


def two_dtypes() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES).double())


REFUSED = {
    "1 is a norm layer with momentum=None": lambda: nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5, momentum=None)
    ),
    r"the same dtype, but .*(weight|bias) is torch\.float32.* is torch\.float64": two_dtypes,
    "0.weight has no shape yet": lambda: nn.Sequential(nn.LazyLinear(5)),
    "1.weight has no shape yet": lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d()),
    "no trainable parameters": lambda: with_bias().requires_grad_(False),
    r"(0\.weight and 1\.weight|1\.weight and 0\.weight) share memory": shared_memory,
}


@pytest.mark.parametrize("message", REFUSED)
def test_models_that_cannot_be_one_vector_are_refused_by_name(message):
    with pytest.raises(wima.UsageError, match=message):
        Flat(REFUSED[message]())


def test_a_refused_model_is_left_as_it_was():
    model = two_dtypes()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    with pytest.raises(wima.UsageError):
        Flat(model)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before


def test_a_norm_layer_without_statistics_needs_no_momentum():
    norm = nn.BatchNorm1d(5, momentum=None, track_running_stats=False)
    flat = Flat(nn.Sequential(nn.Linear(FEATURES, 5), norm))
    assert len(flat.w) == len(flat.g) == sum(p.numel() for p in flat.module.parameters())


def test_dropout_is_a_function_of_the_address_of_the_batch():
    data, model = make_data(), nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.5))
    task = wima.make_task(model, data, (data.x, data.y))
    x, y, w = torch.from_numpy(data.x), torch.from_numpy(data.y), task.init(0)
    here, again, elsewhere = (
        task.gradient(w, wima.Batch(x, y, address)) for address in ((0, 1, 2), (0, 1, 2), (0, 2, 1))
    )
    assert torch.equal(here, again) and not torch.equal(here, elsewhere)
