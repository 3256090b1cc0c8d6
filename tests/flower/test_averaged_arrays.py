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
from wima import EMA, LAWA, WIMA, RunError, UsageError
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


def spiked(at: int, factor: float) -> list[dict[str, np.ndarray]]:
    """Models of which one is huge, but finite."""
    models = drawn(20)
    models[at]["w"] = models[at]["w"] * np.float32(factor)
    return models


@pytest.mark.parametrize("averager", [WIMA(4), LAWA(4, 1), EMA(0.5)])
def test_a_diverged_model_is_left_out_with_a_line_in_the_log(averager, caplog):
    models = spiked(10, 1e25)
    found = feed(averaged(FedAvg(), averager), models)
    expected = feed(averaged(FedAvg(), averager), models[:10] + models[11:])
    assert found.seen == 19 and same(found.model(averager.name), expected.model(averager.name))
    (line,) = [r.getMessage() for r in caplog.records if "norm" in r.getMessage()]
    assert "Round 11: the norm of the model is" in line and "averages leave it out" in line
    allowed = feed(averaged(FedAvg(), WIMA(4), diverged=1e30), models)
    w = np.mean([m["w"].astype(np.float64) for m in models[-4:]], axis=0)
    assert allowed.seen == 20  # and the huge model leaves no trace when it has left the window
    np.testing.assert_allclose(allowed.model("wima4")["w"].numpy(), w, rtol=1e-5, atol=1e-7)


def test_the_limit_is_that_of_the_simulator():
    """A factor of the initial model's norm, or of 1 if that is larger; here of 1e4."""
    for first, largest in ((1e-3, 1e4), (50.0, 50e4)):
        for factor, seen in ((0.99, 2), (1.01, 1)):
            strategy = averaged(FedAvg(), WIMA(4))
            strategy.averaging.begin(record({"w": np.array([first], np.float32)}))
            models = [{"w": np.array([w], np.float32)} for w in (first, factor * largest)]
            assert feed(strategy, models).seen == seen


def test_the_limit_survives_a_restart(tmp_path):
    first, grown = ({"w": np.array([w], np.float32)} for w in (1.0, 9e3))
    feed(averaged(FedAvg(), WIMA(4), folder=tmp_path), [first, grown]).close()
    again = averaged(FedAvg(), WIMA(4), folder=tmp_path)
    assert feed(again, [{"w": np.array([2e4], np.float32)}]).seen == 2
    again.averaging.close()


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
