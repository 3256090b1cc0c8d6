"""The window average inside pfl-research."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.frameworks import RULE, trained

PFL = Path.home() / ".cache" / "wima-benchmarks" / "pfl" / "bin" / "python"

PFL_RUN = (
    RULE
    + """
import sys
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.callback.restore_training import RestoreTrainingCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from wima.training.callbacks.pfl import WindowAveraging

loss = torch.nn.functional.cross_entropy


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.evaluated = torch.nn.Linear(4, 2), []

    def loss(self, x, y, **_):
        return loss(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x, y, **_):
        self.evaluated.append(self.net.weight.clone())
        return {"loss": Weighted(float(loss(self.net(x), y)) * len(y), len(y))}


draw = torch.Generator().manual_seed(1)
users = {i: [torch.randn(6, 4, generator=draw), torch.arange(6) % 2] for i in range(8)}


class Walk(TrainingProcessCallback):
    def __init__(self):
        self.seen, self.models = [], []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.seen.append(model.pytorch_model.net.weight.detach().clone())
        self.models.append(copies(model.pytorch_model.parameters()))
        return False, Metrics()


def train(rounds, window=None, folder=None):
    np.random.seed(0)
    module, walk = Net(), Walk()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    sampler = iter(range(10**6))
    dataset = FederatedDataset.from_slices(users, lambda: next(sampler) % 8)
    callbacks, averaging, algorithm = [walk], None, FederatedAveraging()
    if window:
        named = lambda n: StringMetricName(f"Central val WIMA | {n}")
        central = CentralEvaluationCallback(
            Dataset(users[0]), NNEvalHyperParams(None), format_fn=named)
        averaging = WindowAveraging(model, window, evaluation=central)
        callbacks.append(averaging)
    if folder:
        callbacks.append(RestoreTrainingCallback([model, algorithm, averaging], folder))
    algorithm.run(
        NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=10**6,
                          train_cohort_size=4, val_cohort_size=0),
        SimulatedBackend(training_data=dataset, val_data=dataset), model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=6),
        callbacks=callbacks, send_metrics_to_platform=False)
    return module, averaging and averaging.average, walk


plain, _, _ = train(8)
watched, average, _ = train(8, window=3)
assert torch.equal(plain.net.weight, watched.net.weight)
assert average.calls == 8
assert torch.equal(watched.evaluated[-1], average.tensors()["net.weight"])

import tempfile
folder = tempfile.mkdtemp()
before = train(5, window=7, folder=folder)[2].seen
_, again, walk = train(8, window=7, folder=folder)  # begins with the iteration that was saved in
after = walk.seen
walk = [*before, *after]
assert len(before) == 5 and len(after) < 7 and again.calls == len(walk)
mean = torch.stack(walk[-7:]).double().mean(0).float()
torch.testing.assert_close(again.tensors()["net.weight"], mean)

# The model holds the mean of the clients' updates as its gradient, which chooses the window.
# The central rate is 1 here, so that the update is also the difference of two models.
_, auto, walked = train(60, window="auto")
start = copies(Net().parameters())
deltas = [a - b for a, b in zip([start, *walked.models], walked.models)]
watch = Averages({"auto": WIMA("auto")}, start)
for model, delta in zip(walked.models, deltas):
    watch.update(model, delta)
torch.testing.assert_close(copies(auto.tensors().values()), watch.vector("auto"), atol=1e-6, rtol=0)
assert auto.n_averaged == watch.used()["auto"] > 1
print("pfl restored")
"""
)


def test_pfl_trains_the_same_evaluates_the_average_and_restores():
    python = sys.executable if find_spec("pfl") else str(PFL)
    if not Path(python).exists():
        pytest.skip("pfl-research is not installed, here or by the benchmarks")
    assert "pfl restored" in trained(PFL_RUN, python=python)
