"""Which model an averaged Flower strategy gives back: plain, average, or the better one."""

from __future__ import annotations

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import (
    FedAvg,
)

from tests.helpers.flower_toys import ROUNDS, W, drawn, feed, play, same
from wima import SWA, WIMA, UsageError
from wima.flower import averaged


def test_the_average_is_served_if_asked_for():
    result, _ = play(averaged(FedAvg(), WIMA(W), serve="average"))
    assert result.served == f"wima{W}" and same(result.arrays, result.models[f"wima{W}"])
    assert not same(result.arrays, result.models["plain"])


@pytest.mark.parametrize("serve", ["plain", "average"])
@pytest.mark.parametrize("evaluated", ["plain", "average"])
def test_the_log_says_which_model_is_served_and_which_clients_evaluated(caplog, serve, evaluated):
    names = {"plain": "plain", "average": f"wima{W}"}
    strategy = averaged(FedAvg(), WIMA(W), serve=serve, evaluate_clients_with=evaluated)
    with caplog.at_level("INFO", "flwr"):
        result, _ = play(strategy)
    assert same(result.arrays, result.models[names[serve]])
    assert f"result.arrays is the model '{names[serve]}'; result.models has" in caplog.text
    assert f"Clients evaluated the model '{names[evaluated]}'." in caplog.text


def leading(leads: list[bool]):
    """Metrics by which the average leads in these evaluations, given in the order of rounds."""
    calls = iter([x for lead in leads for x in (0.5, 0.6 if lead else 0.4)])
    return lambda arrays: MetricRecord({"accuracy": next(calls)})


@pytest.mark.parametrize(
    ("leads", "average_is_served"),
    [
        ([True, True], False),
        ([True, True, True], True),
        ([True, True, False, True, True], False),
        ([True, True, True, False, False, True], True),
        ([True, True, True, False, False, False], False),
    ],
)
def test_the_average_is_served_once_it_has_led_long_enough(leads, average_is_served):
    first = iter([MetricRecord({"accuracy": 0.0})])
    judged = leading(leads)

    def evaluate(arrays):  # the initial model, then both models of every round
        return next(first, None) or judged(arrays)

    strategy = averaged(FedAvg(), WIMA(W), serve="better", patience=3)
    result, _ = play(strategy, evaluate=evaluate, rounds=len(leads))
    assert (result.served == f"wima{W}") is average_is_served
    assert same(result.arrays, result.models[result.served])


def test_a_lower_loss_can_decide():
    options = {"serve": "better", "patience": 1, "metric": "loss", "lower_is_better": True}
    strategy = averaged(FedAvg(), WIMA(W), **options)
    result, _ = play(strategy)
    last = result.evaluate_metrics_serverapp[ROUNDS]
    assert (result.served == f"wima{W}") == (last[f"wima{W}/loss"] < last["loss"])


def test_better_needs_an_evaluation_and_its_metric():
    strategy = averaged(FedAvg(), WIMA(W), serve="better")
    with pytest.raises(UsageError, match="pass `start` an evaluate_fn"):
        play(strategy, evaluate_fn=None)
    strategy = averaged(FedAvg(), WIMA(W), serve="better", metric="f1")
    with pytest.raises(UsageError, match=r"'f1'.* got loss, accuracy"):
        play(strategy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serve": "best"}, "serve must be one of plain, average, better, got 'best'"),
        ({"patience": 0}, "patience must be a positive integer"),
        ({"evaluate_clients_with": "both"}, "evaluate_clients_with must be one of"),
        ({"window_store": "files"}, "window_store='files' needs a folder"),
        ({"store_dtype": "int8"}, "store_dtype must be one of float32, bfloat16"),
        ({"nonsense": 1}, "Unknown setting 'nonsense'"),
    ],
)
def test_settings_are_checked(options, message):
    strategy = FedAvg()
    with pytest.raises(UsageError, match=message):
        averaged(strategy, WIMA(W), **options)
    assert type(strategy) is FedAvg


def test_mistakes_are_told():
    with pytest.raises(UsageError, match="already averaged"):
        averaged(averaged(FedAvg(), WIMA(W)), WIMA(W))
    with pytest.raises(UsageError, match="use averaged_legacy"):
        averaged("FedAvg", WIMA(W))
    with pytest.raises(UsageError, match=r"needs an averager"):
        averaged(FedAvg(), [])
    with pytest.raises(UsageError, match="needs the names of the last layer"):
        averaged(FedAvg(), WIMA(W, part="features"))
    with pytest.raises(UsageError, match="no floating-point array 'head'"):
        feed(averaged(FedAvg(), WIMA(W, part="features"), classifier=["head"]), drawn(1))
    with pytest.raises(UsageError, match="is a fraction of all rounds"):
        feed(averaged(FedAvg(), SWA(start=0.75)), drawn(1))
