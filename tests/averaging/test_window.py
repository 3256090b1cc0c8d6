"""WIMA is the mean of the last W global models, and watching it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima.algorithms.server_opt import SGD
from wima.averaging import Averages, named
from wima.core.vector import Flat
from wima.data.federated import FederatedData
from wima.storage.ring import Ring

WINDOWS = (5, 10, 50, 100, 200)


def models(count: int, d: int = 6, dtype=torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """A random walk, as training makes them: the initial model, then `count` more."""
    steps = torch.randn(count + 1, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return list(steps.cumsum(0))


def mean(vectors) -> torch.Tensor:
    return torch.stack(list(vectors)).double().mean(0)


def make_task() -> wima.Task:
    random, sizes = np.random.default_rng(0), (7, 12, 5, 9)
    x = random.normal(size=(sum(sizes), 6)).astype(np.float32)
    y = random.integers(0, 3, sum(sizes))
    data = FederatedData(x, y, np.append(0, np.cumsum(sizes)))
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))  # noqa: E731
    return wima.make_task(make, data, (x, y))


def play(task: wima.Task, rounds: int = 30, **settings):
    """w^0, w^1, ... of a run, and the models it watched after every round."""
    common = {"clients_per_round": 2, "lr": 0.3, "batch_size": 4, "engine": "serial"}
    simulation = wima.simulate(task, rounds=rounds, **common, **settings)
    w, watched = [simulation.w.clone()], []
    for _ in simulation:
        w.append(simulation.w.clone())
        watched.append({name: v.clone() for name, v in simulation.vectors().items()})
    return w, watched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [1, 2, 3, 7, 50])
def test_wima_is_the_mean_of_the_last_models_and_of_what_there_is_before(window, dtype):
    first, *rest = models(60, dtype=dtype)
    watch = Averages({"wima": wima.WIMA(window)}, first)
    for t in range(len(rest)):
        watch.update(rest[t])
        expected = mean(rest[max(0, t + 1 - window) : t + 1])
        value = watch.vector("wima")
        assert value.dtype == dtype
        torch.testing.assert_close(value, expected.to(dtype), rtol=1e-6, atol=1e-6)
        if dtype == torch.float64:
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-13)


def test_window_of_one_is_the_last_model():
    first, *rest = models(20, dtype=torch.float64)
    watch = Averages(named([wima.WIMA(1)]), first)
    for w in rest:
        watch.update(w)
        torch.testing.assert_close(watch.vector("wima1"), w, rtol=0, atol=1e-13)
        assert torch.equal(watch.vector("plain"), w)


def test_before_the_first_round_the_average_is_the_initial_model():
    (w,) = models(0)
    watch = Averages({"wima": wima.WIMA(3)}, w)
    assert torch.equal(watch.vector("wima"), w) and torch.equal(watch.vector("plain"), w)


class Recording:
    """A server optimizer that notes the pseudo-gradients it is given."""

    def __init__(self, opt: SGD) -> None:
        self.opt, self.seen = opt, []

    def init(self, w):
        return self.opt.init(w)

    def update(self, gradient, state):
        self.seen.append(gradient.clone())
        return self.opt.update(gradient, state)


@pytest.mark.parametrize("server_lr", [1.0, 0.4])
def test_eq_6_wima_of_fedavg_is_w_steps_with_a_falling_learning_rate(server_lr):
    window, opt = 7, Recording(SGD(lr=server_lr))
    w, watched = play(make_task(), averagers=[wima.WIMA(window)], server_opt=opt)
    deltas = [delta.double() for delta in opt.seen]
    for begin in range(len(deltas) - window + 1):
        rates = [server_lr * (begin + window - t) / window for t in range(begin, begin + window)]
        steps = zip(rates, deltas[begin : begin + window], strict=True)
        expected = w[begin].double() - sum(rate * delta for rate, delta in steps)
        value = watched[begin + window - 1][f"wima{window}"].double()
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("opt", [SGD(lr=0.5, momentum=0.9), SGD(momentum=0.8, nesterov=True)])
@pytest.mark.parametrize("window", [1, 4, 9])
def test_eq_7_wima_of_any_server_step_is_its_steps_with_falling_weights(opt, window):
    w, watched = play(make_task(), averagers=[wima.WIMA(window)], server_opt=opt)
    w = [model.double() for model in w]
    for begin in range(len(w) - window):
        end = begin + window
        expected = w[begin].clone()
        for t in range(begin, end):
            expected -= (end - t) / window * (w[t] - w[t + 1])
        value = watched[end - 1][f"wima{window}"].double()
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-6)


def test_wima_moves_by_the_mean_of_the_last_steps():
    window = 5
    w, watched = play(make_task(), averagers=[wima.WIMA(window)], server_opt=SGD(momentum=0.9))
    averages = [vectors[f"wima{window}"].double() for vectors in watched]  # [t] is after round t
    for t in range(window, len(averages)):
        box = mean(w[tau].double() - w[tau + 1].double() for tau in range(t + 1 - window, t + 1))
        torch.testing.assert_close(averages[t] - averages[t - 1], -box, rtol=0, atol=2e-6)


def test_five_windows_share_one_ring_and_have_one_sum_each():
    first, *rest = models(450, d=11)
    watch = Averages(named([wima.WIMA(window) for window in WINDOWS]), first)
    for t in range(len(rest)):
        watch.update(rest[t])
        for window in WINDOWS:
            expected = mean(rest[max(0, t + 1 - window) : t + 1]).float()
            value = watch.vector(f"wima{window}")
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    d = len(first)
    assert watch.ring.rows.shape == (max(WINDOWS), d) and watch.ring.rows.dtype == first.dtype
    states = [watch.states[f"wima{window}"] for window in WINDOWS]
    sums = [v for state in states for v in state if isinstance(v, torch.Tensor)]
    assert sum(v.untyped_storage().nbytes() for v in sums) == len(WINDOWS) * d * 8
    assert len({v.data_ptr() for v in sums}) == len(WINDOWS)
    assert {v.dtype for v in sums} == {torch.float64}


PARTS = [wima.WIMA(6, part) for part in ("all", "classifier", "features")]
WATCHED = [[], [wima.WIMA(4)], [wima.WIMA(window) for window in WINDOWS], PARTS]


def test_averaging_leaves_the_trajectory_bit_identical():
    task, opt = make_task(), SGD(momentum=0.9)
    runs = [play(task, averagers=averagers, server_opt=opt)[0] for averagers in WATCHED]
    assert all(not torch.equal(a, b) for a, b in zip(runs[0][:-1], runs[0][1:], strict=True))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def test_an_update_neither_writes_w_nor_keeps_its_memory():
    first, *rest = models(12)
    watch = Averages(named([wima.WIMA(2), wima.WIMA(5)]), first)
    for w in rest:
        before, version = w.clone(), w._version
        watch.update(w)
        assert torch.equal(w, before) and w._version == version
        averages = [watch.vector(name).clone() for name in ("wima2", "wima5")]
        copy = w.clone()
        w.fill_(float("nan"))
        now = [watch.vector(name) for name in ("wima2", "wima5")]
        assert all(torch.equal(a, b) for a, b in zip(averages, now, strict=True))
        w.copy_(copy)


@pytest.mark.parametrize("window", [1, 6])
def test_a_part_is_the_mean_there_and_the_last_model_elsewhere(window):
    parts = [wima.WIMA(window, part) for part in ("all", "classifier", "features")]
    task = make_task()
    w, watched = play(task, averagers=parts)
    last = [m for m in task.workspace.module.modules() if isinstance(m, nn.Linear)][-1]
    n = sum(p.numel() for p in last.parameters())
    classifier = torch.arange(len(w[0])) >= len(w[0]) - n  # the last layer lies last
    for t, vectors in enumerate(watched):
        average, newest = mean(w[max(1, t + 2 - window) : t + 2]).float(), w[t + 1]
        expected = {
            "": average,
            "-classifier": torch.where(classifier, average, newest),
            "-features": torch.where(classifier, newest, average),
        }
        for part, vector in expected.items():
            value = vectors[f"wima{window}{part}"]
            torch.testing.assert_close(value, vector, rtol=1e-6, atol=1e-6)
            if window == 1:
                assert torch.equal(value, vectors["plain"])
        assert torch.equal(vectors[f"wima{window}-classifier"][~classifier], newest[~classifier])
        assert torch.equal(vectors[f"wima{window}-features"][classifier], newest[classifier])


def test_a_part_of_a_task_without_layers_is_refused():
    with pytest.raises(wima.UsageError, match="part='classifier' needs a model whose layers"):
        Averages({"head": wima.WIMA(3, "classifier")}, torch.zeros(4))
    with pytest.raises(wima.UsageError, match=r"WIMA\.part must be one of .*got 'head'"):
        wima.WIMA(3, "head")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ten_thousand_updates_do_not_drift(dtype):
    window = 100
    first, *rest = models(10_000, d=4, dtype=dtype)
    rest = [w / w.abs().max() for w in rest]
    watch = Averages({"wima": wima.WIMA(window)}, first)
    for t, w in enumerate(rest):
        watch.update(w)
        if t % 997 == 0 or t == len(rest) - 1:
            state = watch.states["wima"]
            value = state.total / min(t + 1, window)  # the sum before it is rounded to float32
            expected = mean(rest[max(0, t + 1 - window) : t + 1])
            assert (value - expected).abs().max() < 1e-12
            assert torch.equal(watch.vector("wima"), value.to(dtype))


HUGE_MODELS = {
    "one": {20: 1e25},
    "one-of-a-million-times": {20: 1e7},
    "before-the-window-is-full": {2: 1e25},
    "infinity": {20: float("inf")},
    "a-smaller-one-before-it-has-left": {20: 1e30, 23: 1e12},
    "a-slow-return": {20 + k: 10.0 ** (25 - 3 * k) for k in range(9)},
}


@pytest.mark.parametrize("averager", [wima.WIMA(6), wima.LAWA(k=6, every=1)])
@pytest.mark.parametrize("case", HUGE_MODELS)
def test_a_huge_model_that_has_left_the_window_leaves_no_rounding_error(case, averager):
    """The sum of 1e25 and 1 has lost the 1, which is still missing when 1e25 is subtracted."""
    first, *rest = models(60)
    for t, factor in HUGE_MODELS[case].items():
        rest[t] = rest[t] * factor
    watch = Averages({"average": averager}, first)
    huge, finite = HUGE_MODELS[case].keys(), "infinity" not in case
    for t, w in enumerate(rest):
        watch.update(w)
        window = range(max(0, t - 5), t + 1)
        # While one of several huge models is there, the others may have left their errors.
        if not huge & set(window) or (len(huge) == 1 and finite):
            expected = mean(rest[k] for k in window)
            scale = max(float(rest[k].abs().max()) for k in window)
            value = watch.vector("average").double()
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7 * scale)


def test_an_update_after_a_huge_model_reads_one_past_model_as_any_other(monkeypatch):
    first, *rest = models(60)
    rest[20] *= 1e25
    watch, reads = Averages({"average": wima.WIMA(6)}, first), []
    ago = Ring.ago
    monkeypatch.setattr(Ring, "ago", lambda self, n: reads.append(n) or ago(self, n))
    for t, w in enumerate(rest):
        reads.clear()
        watch.update(w)
        assert len(reads) == (t >= 6)


def test_wima_of_a_float64_model_is_float64():
    model = nn.Linear(6, 3).double()
    flat = Flat(model)
    x, y = np.random.default_rng(0).normal(size=(20, 6)), np.arange(20) % 3
    task = wima.make_task(model, FederatedData(x, y, np.array([0, 8, 20])), (x, y))
    w, watched = play(task, averagers=[wima.WIMA(3)])
    assert torch.equal(w[0], flat.w) and w[-1].dtype == torch.float64
    torch.testing.assert_close(watched[-1]["wima3"], mean(w[-3:]), rtol=0, atol=1e-14)


def test_ring_gives_back_what_was_pushed_n_ago():
    vectors, length = models(10), 4
    ring = Ring(length, vectors[0])
    for count, vector in enumerate(vectors, start=1):
        ring.push(vector)
        held = min(count, length)
        for n in range(1, held + 1):
            assert torch.equal(ring.ago(n), vectors[count - n])
        for n in (0, -1, held + 1):
            with pytest.raises(IndexError, match=f"{n} pushes ago: the ring holds {held} vectors"):
                ring.ago(n)


def test_empty_rings_hold_nothing():
    (vector,) = models(0)
    for ring in (Ring(0, vector), Ring(3, vector)):
        with pytest.raises(IndexError, match="holds 0 vectors"):
            ring.ago(1)
    no_room = Ring(0, vector)
    no_room.push(vector)
    with pytest.raises(IndexError, match="holds 0 vectors"):
        no_room.ago(1)


def test_two_averagers_of_one_name_need_a_dict():
    with pytest.raises(wima.UsageError, match="called wima5; give them as a dict"):
        named([wima.WIMA(5), wima.WIMA(3), wima.WIMA(5)])
    _, watched = play(make_task(), rounds=3, averagers={"a": wima.WIMA(5), "b": wima.WIMA(5)})
    assert watched[-1].keys() == {"plain", "a", "b"}
    assert torch.equal(watched[-1]["a"], watched[-1]["b"])
    assert named([wima.WIMA(5), wima.WIMA(5, "classifier")]).keys() == {"wima5", "wima5-classifier"}
    with pytest.raises(wima.UsageError, match="'plain' is reserved for the model"):
        Averages({"plain": wima.WIMA(5)}, torch.zeros(2))


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "5", None])
def test_bad_windows_are_refused_with_their_value(window):
    message = rf"WIMA\.window must be a positive integer, .* or 'auto', got {window!r}\."
    with pytest.raises(wima.UsageError, match=message):
        wima.WIMA(window)
