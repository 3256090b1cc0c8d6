"""Which model an averaged Flower strategy gives back: the plain one or the average."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import (
    FedAvg,
)

from tests.helpers.flower_toys import W, drawn, feed, play, same
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serve": "best"}, "serve must be one of plain, average, got 'best'"),
        ({"serve": "better"}, "serve='better' was removed: evaluate the models"),
        ({"patience": 3}, "Unknown setting 'patience'"),
        ({"evaluate_clients_with": "both"}, "evaluate_clients_with must be one of"),
        ({"window_store": "files"}, "window_store='files' needs a folder"),
        ({"folder": __file__}, "cannot be used as a folder: File exists"),
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
