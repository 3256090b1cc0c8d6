"""Flower's simulation: two Ray actors with one core each, the message API of flwr 1.41."""

from __future__ import annotations

import os
from contextlib import suppress

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from benchmarks.turns import FOREVER, Over, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load


def main(name: str) -> None:
    turns = Turns()
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.models import check_loss, make_model, train

    workload = WORKLOADS[name]
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train_one(message: Message, context: Context) -> Message:
        model = make_model(name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        arrays = load(name).client(context.node_config["partition-id"])
        examples = TensorDataset(*map(torch.from_numpy, arrays))
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
        train(model, DataLoader(examples, workload.batch, shuffle=True), optimizer)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(examples)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        model, data = make_model(name), load(name)

        def loss(arrays: ArrayRecord) -> float:
            model.load_state_dict(arrays.to_torch_state_dict())
            return check_loss(model, data)

        def after_round(t: int, arrays: ArrayRecord) -> None:
            if t > 0:  # also called before the first round
                turns.after(lambda: loss(arrays))

        strategy = FedAvg(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
        )
        with suppress(Over):  # to return from here is how a Flower simulation ends
            strategy.start(grid, ArrayRecord(model.state_dict()), FOREVER, evaluate_fn=after_round)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)


if __name__ == "__main__":
    play(main)
