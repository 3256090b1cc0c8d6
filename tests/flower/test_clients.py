"""What each client gets: the distribution of the metrics that nodes return."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MessageType
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from tests.helpers.flower_toys import NODES, ROUNDS, W, grid, initial, play, pulling
from wima import EMA, WIMA
from wima.core.statistics import summary
from wima.flower import LocalGrid, averaged

AVERAGE = f"wima{W}"


def score(partition: int, arrays: ArrayRecord) -> dict[str, float]:
    """How near a model is to the node's number; no two nodes have the same."""
    far = abs(float(arrays["w"].numpy().astype(np.float64).mean()) - partition - 0.1)
    return {"eval_loss": far, "accuracy": 1 / (1 + far)}


class Tolerant(FedAvg):
    """FedAvg ends a run whose nodes return different metrics; this one aggregates none."""

    def aggregate_evaluate(self, server_round, replies):
        list(replies)


def one_is(change, strategy=Tolerant):
    """A run in which node 2 returns other metrics; the result, and what the others return."""

    def scored(partition, arrays):
        found = score(partition, arrays)
        return change(found) if partition == 2 else found

    result, calls = play(averaged(strategy(), WIMA(W)), pulling(score=scored))
    others = [score(k, calls[ROUNDS][1]) for k in range(NODES) if k != 2]
    return result, {name: [found[name] for found in others] for name in others[0]}


@pytest.mark.parametrize(("which", "name"), [("average", AVERAGE), ("plain", "plain")])
def test_the_result_has_the_distribution_over_clients_of_the_model_they_evaluated(which, name):
    strategy = averaged(FedAvg(), [WIMA(W), EMA()], evaluate_clients_with=which)
    result, calls = play(strategy, pulling(score=score))
    assert list(result.clients) == list(range(1, ROUNDS + 1))
    for t, models in result.clients.items():
        found = [score(k, calls[t][which == "average"]) for k in range(NODES)]
        accuracies, losses = ([f[key] for f in found] for key in ("accuracy", "eval_loss"))
        assert list(models) == [name] and set(models[name]) == {"accuracy", "eval_loss"}
        assert models[name]["accuracy"] == summary(accuracies)
        assert models[name]["accuracy"]["worst"] == min(accuracies)
        # The worst of a loss are its highest values; the rest is the same.
        assert models[name]["eval_loss"] == summary(losses) | {"worst": max(losses)}


def test_a_metric_that_is_said_to_be_better_when_lower_has_its_worst_on_top():
    def perplexity(partition, arrays):
        return {"perplexity": float(partition), "margin": float(partition)}

    strategy = averaged(FedAvg(), WIMA(W), metric="perplexity", lower_is_better=True)
    result, _ = play(strategy, pulling(score=perplexity), rounds=1)
    found = result.clients[1][AVERAGE]
    assert (found["perplexity"]["worst"], found["margin"]["worst"]) == (NODES - 1, 0)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_node_that_returns_no_finite_number_is_left_out_and_the_log_says_so(value, caplog):
    with caplog.at_level("WARNING", "flwr"):
        result, others = one_is(lambda found: found | {"accuracy": value}, FedAvg)
    found = result.clients[ROUNDS][AVERAGE]
    assert found["accuracy"] == summary(others["accuracy"])
    assert (found["accuracy"]["count"], found["eval_loss"]["count"]) == (NODES - 1, NODES)
    said = f"Round {ROUNDS}: 1 of {NODES} clients returned no finite number as 'accuracy'"
    assert said in caplog.text and "'eval_loss'" not in caplog.text


def test_a_node_without_the_metric_is_left_out(caplog):
    with caplog.at_level("WARNING", "flwr"):
        result, others = one_is(lambda found: {"f1": 0.5})
    found = result.clients[ROUNDS][AVERAGE]
    assert found["accuracy"] == summary(others["accuracy"])
    assert found["f1"] == summary([0.5])
    assert f"{NODES - 1} of {NODES} clients returned no finite number as 'f1'" in caplog.text


def test_different_metrics_end_a_run_of_fedavg_as_without_the_average():
    with pytest.raises(InconsistentMessageReplies):
        one_is(lambda found: {"f1": 0.5}, FedAvg)


def test_a_node_that_fails_is_not_counted():
    def fails(found):
        raise RuntimeError("no data today")

    result, others = one_is(fails, FedAvg)
    found = result.clients[ROUNDS][AVERAGE]
    assert found["accuracy"] == summary(others["accuracy"])


class Recording(LocalGrid):
    """Keeps the messages that ask for evaluation; node `silent` never answers them."""

    silent, sent = -1, ()

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        asked = [m for m in messages if m.metadata.message_type == MessageType.EVALUATE]
        self.sent = [*self.sent, *asked]
        replies = super().send_and_receive(messages, timeout=timeout)
        nodes = list(self.get_node_ids())
        missing = [nodes[self.silent]] if asked and self.silent >= 0 else []
        return [r for r in replies if r.metadata.src_node_id not in missing]


def test_a_node_that_never_answers_is_not_counted():
    with Recording(pulling(score=score), NODES, workers=1) as nodes:
        nodes.silent = 2
        strategy = averaged(FedAvg(), WIMA(W))
        result = strategy.start(nodes, initial(), 1)
    average = strategy.averaging.model(AVERAGE)
    expected = [score(k, average)["accuracy"] for k in range(NODES) if k != 2]
    assert result.clients[1][AVERAGE]["accuracy"] == summary(expected)


@pytest.mark.parametrize(
    "returned",
    [{}, {"accuracy": nan}, {"accuracies": [0.5, 0.6]}],
    ids=["nothing", "NaN", "a list"],
)
def test_rounds_without_a_number_have_no_distribution(returned):
    result, _ = play(averaged(FedAvg(), WIMA(W)), pulling(score=lambda *_: returned))
    assert result.clients == {} and ROUNDS in result.evaluate_metrics_clientapp


def test_without_federated_evaluation_there_is_no_distribution():
    result, _ = play(averaged(FedAvg(fraction_evaluate=0.0), WIMA(W)))
    assert result.clients == {}


def test_the_weight_is_no_metric():
    def weighted(partition, arrays):
        return score(partition, arrays) | {"weight": partition + 1}

    strategy = averaged(FedAvg(weighted_by_key="weight"), WIMA(W))
    with grid(pulling(score=weighted)) as nodes:
        messages = strategy.configure_evaluate(1, initial(), ConfigRecord(), nodes)
        strategy.aggregate_evaluate(1, nodes.send_and_receive(messages))
    assert set(strategy.averaging.clients[1]["plain"]) == {"eval_loss", "accuracy"}


def test_replies_of_an_iterator_are_read_on_their_way():
    class First(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            next(iter(replies))

    strategy = averaged(First(), WIMA(W))
    with grid(pulling(score=score)) as nodes:
        messages = strategy.configure_evaluate(1, initial(), ConfigRecord(), nodes)
        strategy.aggregate_evaluate(1, iter(list(nodes.send_and_receive(messages))))
    assert strategy.averaging.clients[1]["plain"]["accuracy"]["count"] == 1


def test_a_second_start_has_a_distribution_of_its_own():
    strategy = averaged(FedAvg(), WIMA(W))
    first, _ = play(strategy, rounds=3)
    second, _ = play(strategy, rounds=1)
    assert (list(first.clients), list(second.clients)) == ([1, 2, 3], [1])


@pytest.mark.parametrize("which", ["average", "plain"])
def test_nodes_are_sent_what_they_are_sent_without_an_average(which):
    sent = []
    for strategy in (FedAvg(), averaged(FedAvg(), WIMA(W), evaluate_clients_with=which)):
        with Recording(pulling(score=score), NODES, workers=1) as nodes:
            strategy.start(nodes, initial(), ROUNDS)
            sent.append(nodes.sent)
    assert len(sent[0]) == len(sent[1]) == NODES * ROUNDS
    for before, after in zip(*sent, strict=True):
        assert after.metadata.dst_node_id == before.metadata.dst_node_id
        assert list(after.content) == list(before.content)
        assert after.content["config"] == before.content["config"]
        old, new = (m.content["arrays"] for m in (before, after))
        assert {n: len(a.data) for n, a in new.items()} == {n: len(a.data) for n, a in old.items()}
        assert which == "average" or all(new[n].data == old[n].data for n in old)
