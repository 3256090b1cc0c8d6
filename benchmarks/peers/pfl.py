"""pfl-research: python -m benchmarks.peers.pfl <workload> <processes>.

Two processes are two ranks of torch.distributed, each with one thread, as pfl's documentation has
it; the second one is started by the first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, SEED, WORKLOADS, load

RANK = "PFL_WORKER_RANK"


def main(name: str, processes: str) -> None:
    if RANK not in os.environ and processes == "2":
        start_second_rank()
    turns = Second() if os.environ.get(RANK) == "1" else Turns()
    simulate(name, turns)


class Second:
    """The second rank: no part of the protocol; it waits for the first one in pfl's all_reduce."""

    def after(self, loss: object) -> None:
        pass


def start_second_rank() -> None:
    """Start rank 1 as a copy of this process, and let this one be rank 0."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ.update(
        OMP_NUM_THREADS="1", PFL_WORKER_ADDRESSES=f"localhost:{port},localhost:{port}"
    )
    command = [sys.executable, "-m", "benchmarks.peers.pfl", *sys.argv[1:]]
    environment = {**os.environ, RANK: "1"}
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment)
    os.environ[RANK] = "0"


def simulate(name: str, turns: Turns | Second) -> None:
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.models import check_loss, loss, make_model

    workload, data, module = WORKLOADS[name], load(name), make_model(name)
    np.random.seed(SEED)  # pfl's ranks must draw the same cohorts

    def user_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        module.train()
        return loss(module(x), y)

    def user_metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(0.0, len(y))}  # asked for in the very first round only

    module.loss, module.metrics = user_loss, user_metrics

    class EveryRound(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            turns.after(lambda: check_loss(module, data))
            return False, Metrics()

    users = {i: [torch.from_numpy(a) for a in data.client(i)] for i in range(CLIENTS)}
    dataset = FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch
        ),
        callbacks=[EveryRound()],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    play(main)
