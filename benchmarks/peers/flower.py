"""Flower's simulation: two Ray actors with one core each, the message API of flwr 1.41.

python -m benchmarks.peers.flower <workload> <loading>: with "loader", clients read their data
through a DataLoader in every visit, as Flower's tutorials do; with "tensors", an actor keeps the
arrays and the model, and clients slice batches.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from benchmarks.turns import FOREVER, Over, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load


def main(name: str, loading: str) -> None:
    turns = Turns()
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from benchmarks.models import check_loss, evaluate, evaluation_batches, make_model, train

    workload = WORKLOADS[name]
    from benchmarks.peers import flower as module  # as actors import it: they must find its caches

    tensors = loading == "tensors"
    batches = module.from_tensors if tensors else module.from_loader
    model_of = module.kept_model if tensors else make_model
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train_one(message: Message, context: Context) -> Message:
        model = model_of(name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
        train(model, batches(name, context.node_config["partition-id"]), optimizer)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        model, data = make_model(name), load(name)
        test = evaluation_batches(data)

        def loss(arrays: ArrayRecord) -> float:
            model.load_state_dict(arrays.to_torch_state_dict())
            return check_loss(model, data)

        def after_round(t: int, arrays: ArrayRecord) -> None:
            if turns.evaluate:
                model.load_state_dict(arrays.to_torch_state_dict())
                evaluate(model, test)
            if t > 0:  # also called before the first round
                turns.after(lambda: loss(arrays))

        strategy = FedAvg(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
        )
        with suppress(Over):  # to return from here is how a Flower simulation ends
            strategy.start(grid, ArrayRecord(model.state_dict()), FOREVER, evaluate_fn=after_round)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)


def from_loader(name: str, client: int) -> Any:
    """Shuffled batches from torch's DataLoader, over data that is opened in every visit."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    examples = TensorDataset(*map(torch.from_numpy, load(name).client(client)))
    return DataLoader(examples, WORKLOADS[name].batch, shuffle=True)


def from_tensors(name: str, client: int) -> Any:
    """Shuffled batches sliced from tensors, over data that the process keeps open."""
    import torch

    x, y = map(torch.from_numpy, kept_data(name).client(client))
    for rows in torch.randperm(len(x)).split(WORKLOADS[name].batch):
        yield x[rows], y[rows]


kept_data = cache(load)


@cache
def kept_model(name: str) -> Any:
    """One model per process, whose weights every visit replaces."""
    from benchmarks.models import make_model

    return make_model(name)


if __name__ == "__main__":
    play(main)
