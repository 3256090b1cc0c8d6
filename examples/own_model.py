"""Your own model and data: arrays with a client id per example, and any torch module."""

import numpy as np
from torch import nn

import wima

rng = np.random.default_rng(0)
x = rng.normal(size=(600, 20)).astype("float32")
y = (x[:, :3].argmax(axis=1)).astype("int64")
hospital = rng.choice(["north", "south", "east", "west"], size=600)

data = wima.FederatedData.from_arrays(x[:500], y[:500], clients=hospital[:500])
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
task = wima.make_task(model, data, test=(x[500:], y[500:]))

result = wima.run(
    task,
    wima.Scaffold(),
    averagers=[wima.WIMA(10), wima.EMA(0.9)],
    rounds=30,
    clients_per_round=2,
    lr=0.1,
    batch_size=20,
)
print(result.summary())
