"""Which replies count for WIMA("auto") on Flower's strategies, which get all as they are."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from tests.helpers.flower_rounds import AUTO, BOTH, Taking, naive_step, rounds
from tests.helpers.flower_toys import W, initial, record
from tests.helpers.listener import heard
from tests.helpers.npy import npy
from wima import WIMA
from wima.flower import averaged


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
    assert "Round 3: replies not used to choose W: 1." in caplog.text


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


class Standing(FedAvg):
    """Hears of its clients, and keeps to the model it has."""

    def configure_train(self, server_round, arrays, config, grid):
        return []

    def aggregate_train(self, server_round, replies):
        return initial(), None


@pytest.mark.parametrize("other", [np.zeros((2, 2), np.float32), raw(b"")], ids=["shape", "raw"])
def test_a_model_that_was_sent_as_something_else_is_not_judged(other):
    strategy, weight = averaged(Standing(), BOTH), MetricRecord({"num-examples": 1})
    other = other if isinstance(other, Array) else Array(other)
    sent = [initial(), ArrayRecord({**initial(), "w": other}), initial()]
    strategy.averaging.begin(initial())
    for t, arrays in enumerate(sent, 1):
        strategy.configure_train(t, arrays, ConfigRecord(), None)
        content = RecordDict({"arrays": arrays, "metrics": weight})
        strategy.aggregate_train(t, [Message(content, dst_node_id=1, message_type="train")])
    assert len(heard(strategy)) == 2 and strategy.averaging.seen == 3
