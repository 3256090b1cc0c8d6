"""What the average on a Flower strategy does with the arrays of a round, or with none."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import (
    FedAvg,
)

from tests.helpers.flower_toys import (
    ROUNDS,
    W,
    drawn,
    feed,
    mean,
    numpy,
    play,
    pulling,
    record,
    same,
)
from wima import WIMA, RunError, UsageError
from wima.flower import averaged


def test_a_round_that_aggregated_nothing_is_left_out():
    strategy = averaged(FedAvg(), WIMA(W))
    result, calls = play(strategy, pulling(fails=(2, 4)))
    assert strategy.averaging.seen == ROUNDS - 2
    assert same(calls[2][1], calls[1][1])
    kept = [calls[t][0] for t in (3, 5, 6)]
    assert same(result.models[f"wima{W}"], mean(kept))


def test_integers_take_the_newest_value():
    result, _ = play(averaged(FedAvg(), WIMA(W)))
    average, plain = numpy(result.models[f"wima{W}"]), numpy(result.models["plain"])
    assert average["steps"] == plain["steps"] == pytest.approx(ROUNDS)


def test_every_array_keeps_its_dtype():
    rng, kinds = np.random.default_rng(0), (np.float16, np.float32, np.float64)
    models = [{k.__name__: rng.normal(size=3).astype(k) for k in kinds} for _ in range(4)]
    averages = feed(averaged(FedAvg(), WIMA(4)), models).model("wima4")
    for kind in kinds:
        expected = np.mean([m[kind.__name__].astype(np.float64) for m in models], axis=0)
        found = averages[kind.__name__].numpy()
        assert found.dtype == kind
        assert (found == expected.astype(kind)).all()


def test_other_kinds_of_arrays_are_refused_by_name():
    with pytest.raises(UsageError, match=r"'z' is complex64; expected float16"):
        feed(averaged(FedAvg(), WIMA(4)), [{"z": np.zeros(2, np.complex64)}])
    with pytest.raises(UsageError, match="no floating-point array"):
        feed(averaged(FedAvg(), WIMA(4)), [{"n": np.zeros(2, np.uint8)}])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, r"Round 2: .*'n' is missing"),
        ({**drawn(1)[0], "x": np.zeros(1)}, r"Round 2: .*'x' is new"),
        ({**drawn(1)[0], "w": np.zeros((3, 2), np.float32)}, r"'w' has shape \(3, 2\), .*\(2, 3\)"),
    ],
    ids=["missing", "new", "shape"],
)
def test_arrays_that_change_are_an_error_that_says_so(other, message):
    with pytest.raises(RunError, match=message):
        feed(averaged(FedAvg(), WIMA(4)), [drawn(1)[0], other])


@pytest.mark.parametrize("which", [0, 1])
def test_a_model_that_is_not_finite_is_left_out(which):
    models = drawn(4)
    models[which]["w"][0, 0] = np.nan
    averages = feed(averaged(FedAvg(), WIMA(2)), models)
    assert averages.seen == 3
    expected = (models[2]["w"].astype(np.float64) + models[3]["w"]) / 2
    assert (averages.model("wima2")["w"].numpy() == expected.astype(np.float32)).all()


def test_what_is_given_is_copied():
    models = drawn(2)
    strategy = averaged(FedAvg(), WIMA(2))
    for t, arrays in enumerate(models, 1):
        given = record(arrays)
        strategy.averaging.add(t, given)
        given.clear()
    expected = (models[0]["w"].astype(np.float64) + models[1]["w"]) / 2
    for _ in range(2):
        average = strategy.averaging.model("wima2")
        assert (average.pop("w").numpy() == expected.astype(np.float32)).all()


def test_a_window_that_memory_cannot_hold_is_refused_with_what_helps():
    with pytest.raises(UsageError, match=r"models need .* GB is free\. .*window_store='files'"):
        feed(averaged(FedAvg(), WIMA(10**12)), drawn(1))
