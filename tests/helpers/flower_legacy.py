"""A small app for Flower's older interface: clients go half way to points of their own."""

from __future__ import annotations

import tests.helpers.flower_toys  # noqa: F401  (switches telemetry off)

# isort: split
import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient

NODES = 5
SIZES = [10 * (k + 1) for k in range(NODES)]
INITIAL = [np.zeros((2, 3), np.float32), np.zeros(2, np.float32)]


def update(partition: int, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """A client's model: half way to a point of its own."""
    rng = np.random.default_rng(partition)
    points = [rng.normal(size=a.shape) for a in INITIAL]
    return [(a + 0.5 * (p - a)).astype(np.float32) for a, p in zip(arrays, points, strict=True)]


class Client(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters, config):
        return update(self.partition, parameters), SIZES[self.partition], {}

    def evaluate(self, parameters, config):
        return float(np.abs(parameters[0]).sum()), 1, {}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()
