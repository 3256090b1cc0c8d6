"""The average on Flower's strategies watches and never steers."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Result,
)

from tests.helpers.flower_toys import (
    NODES,
    ROUNDS,
    W,
    grid,
    initial,
    mean,
    metrics,
    numpy,
    play,
    same,
)
from wima import EMA, LAWA, SWA, WIMA, UsageError
from wima.flower import averaged


class OwnStart(FedAvg):
    """A strategy with a `start` of its own, and another signature."""

    def start(self, grid, initial_arrays, num_rounds=3, *, greeting="", **others):
        self.greeting = greeting
        return super().start(grid, initial_arrays, num_rounds, **others)


STRATEGIES = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda **s: FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **s),
    "FedAdam": lambda **s: FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, **s),
    "FedYogi": lambda **s: FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99, **s),
    "FedProx": lambda **s: FedProx(proximal_mu=0.1, **s),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": lambda **s: FedTrimmedAvg(beta=0.25, **s),
    "Krum": lambda **s: Krum(num_malicious_nodes=1, **s),
    "OwnStart": OwnStart,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_bit_identical_and_the_average_is_that_of_the_last_models(name):
    settings = {"fraction_train": 0.7, "fraction_evaluate": 0.4}
    plain, before = play(STRATEGIES[name](**settings))
    strategy = averaged(STRATEGIES[name](**settings), WIMA(W))
    result, after = play(strategy)
    models = [after[t][0] for t in range(1, ROUNDS + 1)]
    for t in range(ROUNDS + 1):
        assert same(after[t][0], before[t][0])
        assert after[t][0].keys() == initial().keys()
    for t in range(1, ROUNDS + 1):
        expected = mean(models[max(0, t - W) : t])
        for key, array in numpy(after[t][1]).items():  # float64 sums may differ in the last bit
            np.testing.assert_allclose(array, expected[key].numpy(), rtol=1e-14)
        reported = result.evaluate_metrics_serverapp[t]
        for key, value in metrics(expected).items():
            assert reported[key] == metrics(models[t - 1])[key]
            assert reported[f"wima{W}/{key}"] == pytest.approx(value, rel=1e-12)
        assert {k: v for k, v in reported.items() if "/" not in k} == (
            plain.evaluate_metrics_serverapp[t]
        )
    assert result.train_metrics_clientapp == plain.train_metrics_clientapp
    assert same(result.arrays, plain.arrays)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_stays_what_it_is(name):
    strategy = STRATEGIES[name](min_train_nodes=4)
    own, fields = type(strategy), dict(vars(strategy))
    same_object = averaged(strategy, WIMA(W))
    assert same_object is strategy
    assert isinstance(strategy, own) and isinstance(strategy, FedAvg)
    assert {k: v for k, v in vars(strategy).items() if k != "averaging"} == fields
    assert type(strategy).__name__ == f"Averaged{own.__name__}"


def test_the_result_holds_both_models():
    result, calls = play(averaged(FedAvg(), WIMA(W)))
    assert isinstance(result, Result) and result.served == "plain"
    assert list(result.models) == ["plain", f"wima{W}"]
    assert same(result.models["plain"], calls[ROUNDS][0]) and same(result.arrays, calls[ROUNDS][0])
    assert same(result.models[f"wima{W}"], calls[ROUNDS][1])


def test_a_start_of_its_own_is_called_with_its_own_arguments():
    strategy = averaged(OwnStart(), WIMA(W))
    result, calls = play(strategy, greeting="hello")
    assert strategy.greeting == "hello"
    assert f"wima{W}/loss" in result.evaluate_metrics_serverapp[1] and len(calls[1]) == 2


def test_a_loop_without_start_has_its_average():
    class Loop(FedAvg):
        def start(self, grid, arrays):
            for t in (1, 2):
                replies = grid.send_and_receive(
                    self.configure_train(t, arrays, ConfigRecord(), grid)
                )
                arrays, _ = self.aggregate_train(t, replies)
            return "done"

    strategy = averaged(Loop(), WIMA(W))
    with grid() as nodes:
        assert strategy.start(nodes, initial()) == "done"
    assert strategy.averaging.seen == 2
    assert numpy(strategy.averaging.models()[f"wima{W}"])["steps"] == 2


def test_several_averagers_watch_one_run():
    averagers = [WIMA(2), EMA(0.5), LAWA(2, 2), SWA(start=0.5, cycle=1)]
    result, calls = play(averaged(FedAvg(), averagers))
    assert list(result.models) == ["plain", *(a.name for a in averagers)]
    w = [calls[t][0]["w"].numpy().astype(np.float64) for t in range(1, ROUNDS + 1)]
    ema = w[0]
    for model in w[1:]:
        ema = 0.5 * ema + 0.5 * model
    expected = {
        "wima2": (w[4] + w[5]) / 2,
        "ema0.5": ema,
        "lawa2x2": (w[3] + w[5]) / 2,
        averagers[3].name: (w[4] + w[5]) / 2,  # round 0.5 * 6 = 3 is left out: t > start
    }
    for name, value in expected.items():
        np.testing.assert_allclose(result.models[name]["w"].numpy(), value, rtol=1e-6)


def test_averages_of_a_part_take_the_rest_from_the_newest_model():
    strategy = averaged(FedAvg(), WIMA(W, part="classifier"), classifier=["bias"])
    result, calls = play(strategy)
    average = numpy(result.models[f"wima{W}-classifier"])
    whole = numpy(mean([calls[t][0] for t in range(ROUNDS - W + 1, ROUNDS + 1)]))
    assert average["bias"] == whole["bias"]
    assert (average["w"] == calls[ROUNDS][0]["w"].numpy()).all()


@pytest.mark.parametrize("which", ["average", "plain"])
def test_clients_evaluate_the_model_that_is_asked_for(which):
    strategy = averaged(FedAvg(), WIMA(W), evaluate_clients_with=which)
    result, calls = play(strategy)
    for t in range(1, ROUNDS + 1):
        expected = metrics(calls[t][1 if which == "average" else 0])
        found = result.evaluate_metrics_clientapp[t]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)


PRIVATE = {
    "server-fixed": lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1e-3, 1e3, NODES),
    "client-fixed": lambda s: DifferentialPrivacyClientSideFixedClipping(s, 1e-3, 1e3, NODES),
    "server-adaptive": lambda s: DifferentialPrivacyServerSideAdaptiveClipping(
        s, 1e-3, NODES, clipped_count_stddev=1.0
    ),
    "client-adaptive": lambda s: DifferentialPrivacyClientSideAdaptiveClipping(
        s, 1e-3, NODES, clipped_count_stddev=1.0
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_an_average_inside_a_private_strategy_is_refused_before_it_is_made(name):
    strategy = averaged(FedAvg(), WIMA(W))
    play(strategy, rounds=1)  # a run of its own before does not change that
    for fresh, seen in ((averaged(FedAvg(), WIMA(W)), 0), (strategy, 1)):
        with pytest.raises(UsageError, match=r"write averaged\(DifferentialPrivacy\.\.\.\(FedAvg"):
            play(PRIVATE[name](fresh))
        assert fresh.averaging.seen == seen


def test_a_loop_of_ones_own_begins_with_the_initial_model():
    strategy, config = averaged(FedAvg(), WIMA(W)), ConfigRecord()
    with grid() as nodes:
        with pytest.raises(UsageError, match=r"without `start`, calls strategy\.averaging\.begin"):
            strategy.configure_train(1, initial(), config, nodes)
        strategy.averaging.begin(initial())
        messages = strategy.configure_train(1, initial(), config, nodes)
        strategy.aggregate_train(1, nodes.send_and_receive(messages))
    assert strategy.averaging.seen == 1


def test_the_average_of_private_models_is_allowed():
    private, before = play(PRIVATE["server-fixed"](FedAvg()))
    strategy = averaged(PRIVATE["server-fixed"](FedAvg()), WIMA(W))
    result, calls = play(strategy)
    assert isinstance(strategy, DifferentialPrivacyServerSideFixedClipping)
    assert same(result.arrays, private.arrays) and same(calls[ROUNDS][0], before[ROUNDS][0])
    without_noise, _ = play(FedAvg())
    assert not same(result.arrays, without_noise.arrays)
    w = [calls[t][0]["w"].numpy() for t in range(ROUNDS - W + 1, ROUNDS + 1)]
    np.testing.assert_allclose(result.models[f"wima{W}"]["w"].numpy(), np.mean(w, 0), rtol=1e-6)
