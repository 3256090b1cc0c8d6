"""WIMA("auto") on Flower's strategies: judged by the clients' mean step, whatever the rule."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Strategy,
)

from tests.flower.test_strategy import PRIVATE, STRATEGIES
from tests.helpers.flower_toys import NODES, ROUNDS, W, grid, initial, numpy, play, record, same
from tests.helpers.listener import Listener, heard
from tests.helpers.npy import npy
from wima import WIMA, UsageError
from wima.averaging import Watch
from wima.flower import averaged
from wima.flower.averages import strategy as module

AUTO, BOTH = WIMA("auto"), [WIMA("auto"), Listener()]
FLOATING = ("w", "bias")  # of the toys' arrays, in their order


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([arrays[n].numpy().ravel() for n in FLOATING]).astype(np.float64)


def naive_step(sent: ArrayRecord, replies: list[Message]) -> np.ndarray:
    """w - the example-weighted mean of the clients' models."""
    weights = [reply.content["metrics"]["num-examples"] for reply in replies]
    models = [flat(reply.content["arrays"]) for reply in replies]
    return flat(sent) - sum(n * m for n, m in zip(weights, models, strict=True)) / sum(weights)


def rounds(strategy, count: int, change=lambda replies: replies, nodes=None, arrays=None):
    """Rounds as `start` counts them; the model that was sent, the naive step, the new model."""
    arrays = arrays or initial()
    with nullcontext(nodes) if nodes else grid() as nodes:
        for t in range(1, count + 1):
            random.seed(strategy.averaging.seen)
            messages = strategy.configure_train(t, arrays, ConfigRecord(), nodes)
            replies = list(nodes.send_and_receive(messages))
            sent, step = arrays, naive_step(arrays, replies)
            arrays, _ = strategy.aggregate_train(t, change(replies))
            yield sent, step, arrays


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_step_is_the_weighted_mean_of_the_replies_and_w_is_chosen_by_it(name):
    strategy = averaged(STRATEGIES[name](fraction_train=0.5), BOTH)
    watch = Watch({"wima-auto": AUTO}, torch.from_numpy(flat(initial())).float())
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


class Taking(FedAvg):
    """Keeps the replies it is given; its model is that of the first, whatever the others are."""

    most = 100

    def aggregate_train(self, server_round, replies):
        self.given, self.taken = replies, []
        for reply in replies:
            self.taken.append(reply)
            if len(self.taken) == self.most:
                break
        return self.taken[0].content["arrays"], None


def test_replies_reach_the_strategy_as_they_are():
    strategy, given = averaged(Taking(), BOTH), []
    for _ in rounds(strategy, 2, lambda replies: given.append(replies) or replies):
        assert strategy.given is given[-1]
    assert len(heard(strategy)) == 2


def test_an_iterator_is_read_no_further_than_the_strategy_reads_it():
    strategy, given, pulled = averaged(Taking(), BOTH), [], []
    strategy.most = 2

    def one_by_one(replies):
        given[:], pulled[:] = replies, []
        for reply in replies:
            pulled.append(reply)
            yield reply

    for sent, _, _ in rounds(strategy, 3, one_by_one):
        assert len(pulled) == 2
        assert all(a is b for a, b in zip(strategy.taken, given[:2], strict=True))
        expected = naive_step(sent, given[:2])
        np.testing.assert_allclose(heard(strategy)[-1], expected, rtol=1e-5, atol=1e-6)


def with_arrays(reply, **arrays):
    reply.content["arrays"] = ArrayRecord({**reply.content["arrays"], **arrays})


def with_weight(reply, weight):
    reply.content["metrics"]["num-examples"] = weight


def raw(data: bytes) -> Array:
    return Array("float32", (4,), "numpy.ndarray", data)


BROKEN = {
    "other names": lambda r: with_arrays(r, more=Array(np.zeros(1))),
    "missing": lambda r: r.content["arrays"].pop("bias"),
    "other shape": lambda r: with_arrays(r, w=Array(np.zeros((2, 2), np.float32))),
    "broadcast": lambda r: with_arrays(r, w=Array(np.zeros(1, np.float32))),
    "not finite": lambda r: with_arrays(r, w=Array(np.full(4, np.nan, np.float32))),
    "complex": lambda r: with_arrays(r, w=Array(np.zeros(4, np.complex64))),
    "texts": lambda r: with_arrays(r, w=Array(np.array(list("abcd")))),
    "a header that lies": lambda r: with_arrays(r, w=raw(npy("(1000000000000,)"))),
    "no array": lambda r: with_arrays(r, w=raw(b"nonsense")),
    "other format": lambda r: with_arrays(r, w=Array("float32", (4,), "zip", b"")),
    "no model": lambda r: r.content.pop("arrays"),
    "several models": lambda r: r.content.update(a=record({}), b=r.content.pop("arrays")),
    "no metrics": lambda r: r.content.pop("metrics"),
    "no weight": lambda r: r.content["metrics"].pop("num-examples"),
    "infinite weight": lambda r: with_weight(r, float("inf")),
    "weight is no number": lambda r: with_weight(r, float("nan")),
    "negative weight": lambda r: with_weight(r, -1),
    "huge weight": lambda r: with_weight(r, 10**400),
    "several weights": lambda r: with_weight(r, [1, 2]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reply_that_cannot_be_used_is_left_out(name, caplog):
    strategy, good = averaged(Taking(), BOTH), []

    def broken(replies):
        BROKEN[name](replies[2])
        good[:] = replies[:2] + replies[3:]
        return replies

    for sent, _, arrays in rounds(strategy, 3, broken):
        assert arrays is strategy.taken[0].content["arrays"]
        expected = naive_step(sent, good)
        np.testing.assert_allclose(heard(strategy)[-1], expected, rtol=1e-5, atol=1e-6)
    assert "Round 3: 1 replies do not count for the window" in caplog.text


def test_clients_that_failed_are_left_out():
    strategy, good = averaged(FedAvg(), BOTH), []

    def failed(replies):
        good[:] = replies[1:]
        return [Message(Error(1, "no data today"), reply_to=replies[0]), *good]

    for sent, _, _ in rounds(strategy, 2, failed):
        expected = naive_step(sent, good)
        np.testing.assert_allclose(heard(strategy)[-1], expected, rtol=1e-5, atol=1e-6)


def test_a_round_without_a_usable_reply_is_not_judged():
    def none(replies):
        for reply in replies[1:]:
            reply.content["metrics"].clear()
        with_weight(replies[0], 0)
        return replies

    strategy = averaged(Taking(), BOTH)
    assert len(list(rounds(strategy, 5, none))) == 5
    assert heard(strategy) == [] and strategy.averaging.windows == {"wima-auto": 1}


def test_an_error_of_the_strategy_is_the_same():
    def inconsistent(replies):
        replies[0].content["metrics"].clear()
        return replies

    for averager in (WIMA(W), AUTO):
        strategy = averaged(FedAvg(), averager)
        with pytest.raises(InconsistentMessageReplies, match="must have the same keys"):
            list(rounds(strategy, 1, inconsistent))


def test_a_model_that_was_sent_as_something_else_is_not_judged():
    strategy, arrays = averaged(Taking(), BOTH), initial()
    list(rounds(strategy, 2))
    with grid() as nodes:
        sent = record({**numpy(arrays), "w": np.zeros((2, 2), np.float32)})
        for other in (sent, ArrayRecord({"w": raw(b"")})):
            strategy.configure_train(3, other, ConfigRecord(), nodes)
            replies = nodes.send_and_receive(
                FedAvg().configure_train(3, arrays, ConfigRecord(), nodes)
            )
            strategy.aggregate_train(3, replies)
    assert len(heard(strategy)) == 2 and strategy.averaging.seen == 4


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
    states = [s.averaging._models.watch.states["wima-auto"] for s in (again, whole)]
    assert torch.equal(states[0].scores, states[1].scores)
    again.averaging.close()
    with pytest.raises(UsageError, match=r"holds averages with averagers .*WIMA\(window='auto'"):
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
        with pytest.raises(UsageError, match=rf"needs FedAvg's mean.*{culprit} has a rule of its"):
            averaged(private, AUTO, folder=tmp_path)
        averaged(private, WIMA(W), folder=tmp_path).averaging.close()
