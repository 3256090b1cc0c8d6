"""Your own model and data: arrays with a client id per example, and any torch module.

Each hospital has patients of one class, and two of six hospitals train in each round: the plain
model swings towards the hospitals that trained last, its average does not.
"""

import numpy as np
from torch import nn

import wima

rng = np.random.default_rng(0)
x = rng.normal(size=(900, 20)).astype("float32")
y = (x[:, :3] + 0.5 * rng.normal(size=(900, 3))).argmax(axis=1)
hospitals = np.array(["north", "south", "east", "west", "hill", "lake"])
hospital = hospitals[2 * y + rng.integers(2, size=900)]

data = wima.FederatedData.from_arrays(x[:600], y[:600], clients=hospital[:600])
task = wima.make_task(
    lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3)),
    data,
    test=(x[600:], y[600:]),
)

result = wima.run(
    task,
    wima.FedAvg(),
    averagers=[wima.WIMA(20), wima.EMA(0.9)],
    rounds=60,
    clients_per_round=2,
    lr=0.3,
    batch_size=10,
)
print(result.summary())
