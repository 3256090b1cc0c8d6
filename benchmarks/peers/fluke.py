"""fluke: one process, clients one after the other, its own evaluation off."""

from __future__ import annotations

from typing import Any

from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, SEED, WORKLOADS, load


def main(name: str) -> None:
    turns = Turns()
    import torch

    from benchmarks.peers.torchvision_on_cpu import declare_operators

    _operators = declare_operators()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader
    from fluke.utils import FederationObserver

    from benchmarks.models import check_loss, evaluate, evaluation_batches, loss, make_model

    workload, data = WORKLOADS[name], load(name)
    test = evaluation_batches(data)
    FlukeENV().set_seed(SEED)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)

    class Clients:
        """Stands for fluke's DataSplitter: the clients are split already."""

        def assign(self, n_clients: int, batch_size: int) -> Any:
            loaders = [
                FastDataLoader(
                    *map(torch.from_numpy, data.client(i)),
                    num_labels=workload.classes,
                    batch_size=batch_size,
                    shuffle=True,
                )
                for i in range(n_clients)
            ]
            return (loaders, [None] * n_clients), None

    class Loss(torch.nn.Module):
        def forward(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return loss(output, y)

    class EveryRound(FederationObserver):
        def end_round(self, round: int) -> None:
            if turns.evaluate:
                evaluate(algorithm.server.model, test)
            turns.after(lambda: check_loss(algorithm.server.model, data))

    client = {
        "batch_size": workload.batch,
        "local_epochs": 1,
        "loss": Loss,
        "optimizer": {"name": "SGD", "lr": workload.lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    settings = {"client": client, "server": {"weighted": True}, "model": make_model(name)}
    algorithm = FedAVG(CLIENTS, Clients(), DDict(settings))
    algorithm.set_callbacks(EveryRound())
    algorithm.run(FOREVER, COHORT / CLIENTS)


if __name__ == "__main__":
    play(main)
