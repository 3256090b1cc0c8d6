"""SWA, EMA and LAWA are their definitions, and no averager disturbs what it watches."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import wima
from tests.helpers import pseudocode
from tests.helpers.toys import quadratics
from wima import EMA, LAWA, SWA, WIMA, FederatedData, PowerEMA, UsageError
from wima.averaging import BY_NAME, Averages

ROUNDS = 40
DTYPES = [torch.float32, torch.float64]
BEGINS = {"first": "first", "initial": "w0", "debiased": "zero-debiased"}  # here: pseudocode
ALL = [
    SWA(start=3, cycle=2),
    SWA(start=3, cycle=2, phase="izmailov"),
    EMA(decay=0.7),
    EMA(decay=0.7, begin="initial"),
    EMA(decay=0.7, begin="debiased"),
    PowerEMA(sigma=0.2),
    LAWA(k=3, every=2),
    WIMA(4),
    WIMA(9, buckets=2),
    WIMA(0.3),
]


def walk(dtype: torch.dtype, rounds: int = ROUNDS, d: int = 5) -> list[torch.Tensor]:
    """The models w^0, w^1, ..., w^rounds of a random walk."""
    steps = np.random.default_rng(0).normal(size=(rounds + 1, d))
    return list(torch.from_numpy(steps).cumsum(0).to(dtype))


def watched(averager: wima.Averager, models: list[torch.Tensor]) -> list[torch.Tensor]:
    """The averager's model after each of w^1, w^2, ..."""
    watch = Averages({"average": averager.for_run(len(models) - 1)}, models[0])
    served = []
    for w in models[1:]:
        watch.update(w)
        served.append(watch.vector("average").clone())
    return served


def check_equal(served: list, naive: list, models: list) -> None:
    """Served models are the naive ones, computed in float64; None stands for the newest model."""
    for value, expected, w in zip(served, naive, models[1:], strict=True):
        expected = w if expected is None else expected
        assert value.dtype == w.dtype
        # Averages are kept in float64, so only the last conversion rounds.
        close = {"rtol": torch.finfo(w.dtype).eps, "atol": 1e-14}
        torch.testing.assert_close(value, expected.to(w.dtype), **close)


def in_double(models: list[torch.Tensor]) -> list[torch.Tensor]:
    return [w.double() for w in models[1:]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("phase", ["fedsam", "izmailov"])
@pytest.mark.parametrize(
    ("start", "cycle"), [(0, 1), (0, 4), (1, 1), (5, 3), (20, 10), (30, 20), (39, 1), (39, 7)]
)
def test_swa_is_the_mean_of_the_models_that_the_pseudocode_collects(start, cycle, phase, dtype):
    models = walk(dtype)
    naive = pseudocode.swa(in_double(models), start, cycle, phase, w0=models[0].double())
    check_equal(watched(SWA(start=start, cycle=cycle, phase=phase), models), naive, models)


@pytest.mark.parametrize(("share", "start"), [(0.75, 30), (0.5, 20), (0.01, 0), (0.99, 39)])
def test_a_share_of_the_rounds_is_the_round_that_it_reaches(share, start):
    models = walk(torch.float64)
    check_equal(watched(SWA(share, 3), models), watched(SWA(start, 3), models), models)
    assert SWA(share).for_run(ROUNDS) == SWA(start) and start == int(share * ROUNDS)


def test_swa_is_the_newest_model_then_the_model_of_its_start_then_what_it_collects():
    models = walk(torch.float32)
    served = watched(SWA(start=10, cycle=5), models)  # collects w^16, w^21, ...
    assert all(torch.equal(served[i], models[i + 1]) for i in range(10))
    assert all(torch.equal(served[i], models[10]) for i in range(10, 15))
    assert all(torch.equal(served[i], models[16]) for i in range(15, 20))
    assert torch.equal(served[20], ((models[16].double() + models[21].double()) / 2).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [1.0, 1e30])
def test_the_first_collected_model_replaces_the_copy_whatever_that_was(before, dtype):
    models = walk(dtype)
    models[10] = torch.full_like(models[10], before)
    assert torch.equal(watched(SWA(start=10, cycle=5), models)[15], models[16])


# ALGORITHMS.md, section 6: s = 3/4 T; how many models each phase collects.
@pytest.mark.parametrize(
    ("rounds", "cycle", "phase", "count"),
    [
        (1500, 10, "fedsam", 37),
        (1500, 20, "fedsam", 18),
        (3000, 10, "fedsam", 74),
        (3000, 20, "fedsam", 37),
        (10000, 10, "fedsam", 249),
        (10000, 20, "fedsam", 124),
        (10000, 10, "izmailov", 250),
        (10000, 20, "izmailov", 125),
    ],
)
def test_swa_from_three_quarters_on_collects_as_many_models_as_published(
    rounds, cycle, phase, count
):
    swa = SWA(cycle=cycle, phase=phase).for_run(rounds)
    state, collected = swa.init(torch.zeros(1)), []
    for t in range(rounds):
        before, state = state.collected, swa.update(state, torch.full((1,), float(t)), None)
        collected += [t] * (state.collected - before)
    first = 3 * rounds // 4 + (cycle if phase == "fedsam" else cycle - 1)
    assert collected == list(range(first, rounds, cycle)) and len(collected) == count
    assert float(swa.value(state)) == pytest.approx(np.mean(collected), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("decay", [0, 0.5, 0.98])
def test_ema_is_its_recursion_from_each_beginning(decay, begin, dtype):
    models = walk(dtype)
    naive = pseudocode.ema(in_double(models), decay, BEGINS[begin], w0=models[0].double())
    check_equal(watched(EMA(decay, begin), models), naive, models)


@pytest.mark.parametrize("begin", BEGINS)
def test_ema_is_the_weighted_sum_of_all_models(begin):
    models, d, n = walk(torch.float64), 0.9, ROUNDS
    weights = [(1 - d) * d ** (n - k) for k in range(1, n + 1)]
    total = sum(weight * w for weight, w in zip(weights, models[1:], strict=True))
    rest = {"first": models[1], "initial": models[0], "debiased": total / (1 - d**n)}[begin]
    torch.testing.assert_close(watched(EMA(d, begin), models)[-1], total + d**n * rest)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.25])
def test_the_profile_of_power_ema_is_a_power_of_the_round_with_that_deviation(sigma):
    count, gamma = 4000, PowerEMA(sigma).gamma
    weights = np.array([t**gamma for t in range(1, count + 1)])
    weights = weights / weights.sum()
    when = np.arange(1, count + 1) / count
    deviation = np.sqrt(weights @ (when - weights @ when) ** 2)
    assert deviation == pytest.approx(sigma, rel=1e-3)
    models = walk(torch.float64, rounds=count, d=2)
    expected = torch.from_numpy(weights) @ torch.stack(models[1:])
    # The recursion's weights are t^gamma up to the discretisation of (1 - 1/t)^(gamma + 1).
    found, spread = watched(PowerEMA(sigma), models)[-1], torch.stack(models).std(0)
    assert ((found - expected).abs() < 1e-2 * spread).all()


def test_power_ema_begins_with_the_first_model():
    models = walk(torch.float64)
    first, second = watched(PowerEMA(0.1), models)[:2]
    assert torch.equal(first, models[1])
    keep = 0.5 ** (PowerEMA(0.1).gamma + 1)
    torch.testing.assert_close(second, keep * models[1] + (1 - keep) * models[2])


@pytest.mark.parametrize("sigma", [0, -1, 0.3, "wide"])
def test_a_profile_of_power_ema_that_does_not_exist_is_refused(sigma):
    with pytest.raises(UsageError, match=r"PowerEMA.sigma must be a number in \(0, 0.288\), got"):
        PowerEMA(sigma)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("k", "every"), [(1, 1), (1, 5), (3, 4), (4, 1), (2, 20), (50, 3), (3, 99)]
)
def test_lawa_is_the_mean_of_the_last_k_collected_models(k, every, dtype):
    models = walk(dtype)
    check_equal(
        watched(LAWA(k, every), models), pseudocode.lawa(in_double(models), k, every), models
    )


@pytest.mark.parametrize("k", [1, 4, 60])
def test_lawa_of_every_model_is_wima(k):
    models = walk(torch.float32)
    lawa, wima_ = watched(LAWA(k, 1), models), watched(WIMA(k), models)
    assert all(torch.equal(one, other) for one, other in zip(lawa, wima_, strict=True))


def test_a_window_longer_than_the_run_is_swa_of_every_model():
    models = walk(torch.float64)
    infinite = watched(WIMA(1000), models)
    check_equal(watched(SWA(0, 1, "izmailov"), models), infinite, models)
    # fedsam's rule skips the model of the round it starts in
    skipping = [models[0], *watched(WIMA(1000), models[1:])]
    check_equal(watched(SWA(0, 1, "fedsam"), models), skipping, models)


def test_columns_are_named_after_what_they_hold():
    names = {
        "swa": SWA(),
        "ema0.98": EMA(),
        "ema0.5": EMA(0.5),
        "power-ema0.1": PowerEMA(),
        "wima0.1": WIMA(0.1),
        "lawa10x10": LAWA(),
        "lawa3x1": LAWA(3, 1),
        "wima7": WIMA(7),
        "wima1000-k4": WIMA(1000, buckets=4),
        "wima7-features": WIMA(7, "features"),
        "swa-classifier": SWA(part="classifier"),
        "ema0.98-features": EMA(part="features"),
        "lawa10x10-classifier": LAWA(part="classifier"),
        "wima9-k2-features": WIMA(9, "features", buckets=2),
    }
    assert {name: averager.name for name, averager in names.items()} == {n: n for n in names}


@pytest.mark.parametrize("kind", BY_NAME)
def test_a_part_is_averaged_and_the_other_one_is_the_newest_model(kind):
    random, parts = np.random.default_rng(0), ["all", "classifier", "features"]
    x, y = random.normal(size=(24, 3)).astype(np.float32), random.integers(0, 2, 24)
    data = FederatedData.from_arrays(x, y, np.repeat([0, 1, 2], 8))
    task = wima.make_task(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), data, (x, y)
    )
    short = {"wima": {"window": 3}, "swa": {"start": 1, "cycle": 2}, "lawa": {"k": 2, "every": 2}}
    averagers = [BY_NAME[kind](**short.get(kind, {}), part=part) for part in parts]
    settings = {"rounds": 7, "clients_per_round": 2, "lr": 0.5, "averagers": averagers}
    plain, whole, classifier, features = wima.run(task, **settings).vectors.values()
    last = 4 * 2 + 2  # weights and biases of the last layer, at the end of the vector
    assert not torch.equal(plain, whole)
    assert torch.equal(classifier, torch.cat([plain[:-last], whole[-last:]]))
    assert torch.equal(features, torch.cat([whole[:-last], plain[-last:]]))


def task() -> wima.Task:
    random = np.random.default_rng(2)
    a, b = random.uniform(0.5, 2, size=(5, 3)), random.normal(size=(5, 3))
    return quadratics(a, b, [3, 4, 5, 6, 7])


def trajectory(**settings: object) -> list[torch.Tensor]:
    common = {"rounds": 12, "clients_per_round": 2, "lr": 0.1, "server_opt": wima.Adam()}
    simulation = wima.simulate(task(), wima.FedCM(), **common, **settings)
    return [simulation.w.clone() for _ in simulation]


def test_all_averagers_in_one_run_leave_training_bit_identical():
    averagers = {f"{i}": averager for i, averager in enumerate(ALL)}
    alone, with_all = trajectory(), trajectory(averagers=averagers)
    assert all(torch.equal(one, other) for one, other in zip(alone, with_all, strict=True))


def test_averagers_of_one_run_are_those_of_runs_of_their_own():
    averagers = {f"{i}": averager for i, averager in enumerate(ALL)}
    settings = {"rounds": 12, "clients_per_round": 2, "lr": 0.1}
    together = wima.run(task(), averagers=averagers, **settings).vectors
    for name, averager in averagers.items():
        alone = wima.run(task(), averagers={name: averager}, **settings).vectors[name]
        assert torch.equal(alone, together[name])
    different = [together[a] for a in averagers]
    assert not any(torch.equal(a, b) for a, b in product(different, different) if a is not b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("averager", ALL)
def test_an_update_neither_writes_w_nor_keeps_its_memory(averager, dtype):
    models = walk(dtype)
    copies, expected = [w.clone() for w in models], watched(averager, [w.clone() for w in models])
    watch = Averages({"average": averager.for_run(ROUNDS)}, copies[0])
    copies[0].fill_(99)
    for i, w in enumerate(copies[1:], start=1):
        version = w._version
        watch.update(w)
        assert w._version == version and torch.equal(w, models[i])
        value = watch.vector("average")
        w.fill_(99)  # what the averager keeps must be its own
        assert torch.equal(value, expected[i - 1])


@pytest.mark.parametrize("averager", [WIMA(3), EMA(), LAWA(), SWA(3)])
def test_what_does_not_depend_on_the_length_of_a_run_stays_as_it_is(averager):
    assert averager.for_run(1500) == averager


@pytest.mark.parametrize(("start", "rounds"), [(10, 10), (1500, 10), (1, 1)])
def test_a_start_after_the_end_is_refused_with_the_rounds_there_are(start, rounds):
    message = rf"SWA\.start must be a round of the run, 0 \.\.\. {rounds - 1}, got {start}\."
    with pytest.raises(UsageError, match=message):
        SWA(start).for_run(rounds)
    with pytest.raises(UsageError, match=message):
        wima.simulate(task(), rounds=rounds, clients_per_round=2, lr=0.1, averagers=[SWA(start)])
    assert SWA(rounds - 1).for_run(rounds).start == rounds - 1
