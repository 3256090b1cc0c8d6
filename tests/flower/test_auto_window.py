"""WIMA("auto") on Flower's strategies: judged by the clients' mean step, whatever the rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Strategy,
)

from tests.flower.test_strategy import PRIVATE, STRATEGIES
from tests.helpers.flower_rounds import AUTO, BOTH, Taking, flat, rounds
from tests.helpers.flower_toys import NODES, ROUNDS, W, grid, initial, play, record, same
from tests.helpers.listener import heard
from wima import WIMA, UsageError
from wima.averaging import Averages
from wima.data.sets.digits import load_digits
from wima.flower import averaged, run_flower
from wima.flower.averages import strategy as module


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_step_is_the_weighted_mean_of_the_replies_and_w_is_chosen_by_it(name):
    strategy = averaged(STRATEGIES[name](fraction_train=0.5), BOTH)
    watch = Averages({"wima-auto": AUTO}, torch.from_numpy(flat(initial())).float())
    windows = []
    for sent, step, arrays in rounds(strategy, 25):
        np.testing.assert_allclose(heard(strategy)[-1], step, rtol=1e-5, atol=1e-6)
        assert sent is not arrays
        watch.update(torch.from_numpy(flat(arrays)).float(), torch.from_numpy(step).float())
        assert strategy.averaging.windows == watch.used()
        windows.append(watch.used()["wima-auto"])
        average = torch.from_numpy(flat(strategy.averaging.model("wima-auto"))).float()
        torch.testing.assert_close(average, watch.vector("wima-auto"), rtol=1e-5, atol=1e-6)
    assert len(heard(strategy)) == 25
    assert name != "FedAvg" or max(windows) > 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_bit_identical_and_metrics_say_which_window_is_used(name):
    plain, before = play(STRATEGIES[name](fraction_train=0.7))
    strategy = averaged(STRATEGIES[name](fraction_train=0.7), AUTO)
    result, after = play(strategy)
    for t in range(ROUNDS + 1):
        assert same(after[t][0], before[t][0])
    assert same(result.arrays, plain.arrays)
    assert result.train_metrics_clientapp == plain.train_metrics_clientapp
    reported = result.evaluate_metrics_serverapp[ROUNDS]
    assert {"wima-auto": reported["wima-auto/window"]} == strategy.averaging.windows


def test_a_mean_with_a_weight_of_another_name():
    strategy = averaged(FedAvg(weighted_by_key="trust"), BOTH)

    def trusted(replies):
        for reply in replies:
            metrics = reply.content["metrics"]
            metrics["trust"] = float(metrics["num-examples"])
            metrics["num-examples"] = 1
        return replies

    for _, step, _ in rounds(strategy, 3, trusted):
        np.testing.assert_allclose(heard(strategy)[-1], step, rtol=1e-5, atol=1e-6)


class Alone(Strategy):
    """A strategy that is none of Flower's and does not say how it weights."""

    def configure_train(self, server_round, arrays, config, grid):
        return FedAvg().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        return FedAvg().aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        pass


def test_all_clients_count_the_same_where_a_strategy_does_not_say_how_it_weights():
    strategy, models = averaged(Alone(), BOTH), []

    def kept(replies):
        models[:] = [flat(reply.content["arrays"]) for reply in replies]
        return replies

    for sent, _, _ in rounds(strategy, 2, kept):
        expected = flat(sent) - np.mean(models, axis=0)
        np.testing.assert_allclose(heard(strategy)[-1], expected, rtol=1e-5, atol=1e-6)


def test_running_statistics_do_not_count():
    strategy = averaged(Taking(), BOTH)
    arrays = {"bn.running_var": np.ones(2, np.float32), "w": np.ones(2, np.float32)}
    strategy.averaging.begin(record(arrays))
    with grid() as nodes:
        for t in (1, 2):
            sent = {name: array * t for name, array in arrays.items()}
            messages = list(strategy.configure_train(t, record(sent), ConfigRecord(), nodes))
            content = messages[0].content
            content["arrays"] = record({name: 3 * array for name, array in sent.items()})
            content["metrics"] = MetricRecord({"num-examples": 1})
            strategy.aggregate_train(t, [messages[0]])
            assert heard(strategy)[-1].tolist() == [0, 0, -2 * t, -2 * t]


def test_replies_are_decoded_only_if_an_averager_asks_for_it(monkeypatch):
    decoded = []
    real = module.to_numpy
    monkeypatch.setattr(module, "to_numpy", lambda array: decoded.append(array) or real(array))
    for averager, models in ((WIMA(W), 0), (AUTO, 1 + 6)):  # what was sent, and six replies
        strategy = averaged(FedAvg(), averager)
        for t, _ in enumerate(rounds(strategy, 3)):
            if t:  # the first round also looks at the initial model
                assert len(decoded) == len(initial()) * (models + 1)
            decoded.clear()


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedAdam"])
@pytest.mark.parametrize("cut", [1, 9])
def test_a_restarted_server_goes_on_to_the_same_choices(name, cut, tmp_path):
    def make(**options):
        return averaged(STRATEGIES[name](fraction_train=0.5), [AUTO, WIMA(W)], **options)

    whole = make()
    windows = [whole.averaging.windows for _ in rounds(whole, 20)]
    first, nodes = make(folder=tmp_path), grid()
    early = [first.averaging.windows for _ in rounds(first, cut, nodes=nodes)]
    first.averaging.close()
    again = make(folder=tmp_path)
    assert again.averaging.windows == early[-1]
    start = again.averaging.model("plain")
    rest = rounds(again, 20 - cut, nodes=nodes, arrays=start)
    assert early + [again.averaging.windows for _ in rest] == windows
    for model in ("plain", "wima-auto", f"wima{W}"):
        assert same(again.averaging.model(model), whole.averaging.model(model))
    states = [s.averaging._averages.states["wima-auto"] for s in (again, whole)]
    assert torch.equal(states[0].scores, states[1].scores)
    again.averaging.close()
    with pytest.raises(UsageError, match=r"contains averages with averagers .*WIMA\(window='auto'"):
        averaged(STRATEGIES[name](), [replace(AUTO, buckets=3), WIMA(W)], folder=tmp_path)


NOISY = {
    "server-fixed": PRIVATE["server-fixed"],
    "client-fixed": PRIVATE["client-fixed"],
    "server-adaptive": lambda s: DifferentialPrivacyServerSideAdaptiveClipping(
        s, 1e-3, NODES, initial_clipping_norm=1e3, clipped_count_stddev=1.0
    ),
}


@pytest.mark.parametrize("name", NOISY)
def test_with_privacy_only_released_models_are_looked_at(name):
    strategy = averaged(NOISY[name](FedAvg()), BOTH)
    for sent, clean, arrays in rounds(strategy, 6):
        released = flat(sent) - flat(arrays)
        np.testing.assert_allclose(heard(strategy)[-1], released, rtol=1e-5, atol=1e-6)
        assert not np.allclose(released, clean, rtol=0.01)


@pytest.mark.parametrize("name", PRIVATE)
def test_private_models_that_are_no_mean_are_refused(name, tmp_path):
    for inside, culprit in ((FedAvgM(), "FedAvgM"), (FedAdam(), "FedAdam"), (Taking(), "Taking")):
        private = PRIVATE[name](inside)
        with pytest.raises(
            UsageError, match=rf"needs FedAvg's mean.*{culprit} aggregates in its own"
        ):
            averaged(private, AUTO, folder=tmp_path)
        averaged(private, WIMA(W), folder=tmp_path).averaging.close()


def test_on_digits_it_is_better_than_the_newest_model():
    """Ten clients with one digit each, three of them in a round."""
    images, digits = load_digits()
    images, train, test = images / 16, np.arange(0, len(digits), 2), np.arange(1, len(digits), 2)
    app, server, results = ClientApp(), ServerApp(), []

    @app.train()
    def visit(message: Message, context) -> Message:
        digit = context.node_config["partition-id"]
        mine = images[train[digits[train] == digit]]
        w = message.content["arrays"]["w"].numpy().astype(np.float64)
        for _ in range(5):
            scores = np.exp(mine @ w)
            wrong = scores / scores.sum(1, keepdims=True) - np.eye(10)[digit]
            w = w - 0.5 * mine.T @ wrong / len(mine)
        metrics, arrays = MetricRecord({"num-examples": len(mine)}), record({"w": np.float32(w)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        found = (images[test] @ arrays["w"].numpy()).argmax(1)
        return MetricRecord({"accuracy": float((found == digits[test]).mean())})

    @server.main()
    def main(nodes, context):
        strategy = averaged(FedAvg(fraction_train=0.3, fraction_evaluate=0.0), AUTO)
        start = record({"w": np.zeros((64, 10), np.float32)})
        results.append(strategy.start(nodes, start, num_rounds=60, evaluate_fn=evaluate))

    run_flower(server, app, nodes=10, workers=1, seed=0)
    late = [results[0].evaluate_metrics_serverapp[t] for t in range(41, 61)]
    assert min(found["wima-auto/window"] for found in late) > 1
    plain = np.mean([found["accuracy"] for found in late])
    assert np.mean([found["wima-auto/accuracy"] for found in late]) > plain + 0.01
