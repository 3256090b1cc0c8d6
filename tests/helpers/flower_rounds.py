"""Rounds of a strategy on the toys, with what the clients' mean step is in naive words."""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

from tests.helpers.flower_toys import grid, initial
from tests.helpers.listener import Listener
from wima import WIMA

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
    strategy.averaging.begin(arrays)
    with nullcontext(nodes) if nodes else grid() as nodes:
        for t in range(1, count + 1):
            random.seed(strategy.averaging.seen)
            messages = strategy.configure_train(t, arrays, ConfigRecord(), nodes)
            replies = list(nodes.send_and_receive(messages))
            sent, step = arrays, naive_step(arrays, replies)
            arrays, _ = strategy.aggregate_train(t, change(replies))
            yield sent, step, arrays


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
