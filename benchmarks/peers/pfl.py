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
from benchmarks.workloads import CLIENTS, COHORT, EVALUATION_BATCH, SEED, WORKLOADS, load

RANK = "PFL_WORKER_RANK"


def main(name: str, processes: str) -> None:
    if os.environ.get(RANK) == "1":
        simulate(name, Second())
    else:
        simulate(name, First(start_second_rank() if processes == "2" else None))


class First(Turns):
    """Rank 0 speaks with the driver, and passes on what it hears to rank 1, if there is one."""

    def __init__(self, other: subprocess.Popen[str] | None) -> None:
        super().__init__()
        self._other = other

    def _next(self, line: str) -> None:
        if self._other:
            print(line, end="", file=self._other.stdin, flush=True)
        super()._next(line)


class Second(Turns):
    """Rank 1 listens only."""

    def _send(self, message: dict[str, object]) -> None:
        pass


def start_second_rank() -> subprocess.Popen[str]:
    """Start rank 1 as a copy of this process, which becomes rank 0."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ.update(
        OMP_NUM_THREADS="1", PFL_WORKER_ADDRESSES=f"localhost:{port},localhost:{port}"
    )
    command = [sys.executable, "-m", "benchmarks.peers.pfl", *sys.argv[1:]]
    environment = {**os.environ, RANK: "1"}
    pipe = {"stdin": subprocess.PIPE, "stdout": sys.stderr, "text": True}
    second = subprocess.Popen(command, env=environment, **pipe)
    os.environ[RANK] = "0"
    return second


def simulate(name: str, turns: Turns) -> None:
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.models import check_loss, loss, make_model

    workload, data, module = WORKLOADS[name], load(name), make_model(name)
    np.random.seed(SEED)  # pfl's ranks must draw the same cohorts

    def user_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        module.train()
        return loss(module(x), y)

    @torch.no_grad()
    def user_metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        module.eval()
        output, count = module(x), y.numel()
        correct = (output.argmax(dim=-1) == y).sum().item()
        total = loss(output, y).item() * count
        return {"loss": Weighted(total, count), "accuracy": Weighted(correct, count)}

    module.loss, module.metrics = user_loss, user_metrics

    test = PyTorchTensorDataset(list(map(torch.from_numpy, data.test)))
    evaluation = CentralEvaluationCallback(test, NNEvalHyperParams(EVALUATION_BATCH))

    class EveryRound(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            metrics = Metrics()
            if turns.evaluate:
                about = {"model": model, "central_iteration": central_iteration}
                _, metrics = evaluation.after_central_iteration(aggregate_metrics, **about)
            turns.after(lambda: check_loss(module, data))
            return False, metrics

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
