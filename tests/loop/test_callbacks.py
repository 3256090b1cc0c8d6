"""The window average inside other people's trainers, with the real packages."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import commands
from tests.helpers.paths import ROOT

PFL = Path.home() / ".cache" / "wima-benchmarks" / "pfl" / "bin" / "python"

needs_lightning = pytest.mark.skipif(not find_spec("lightning"), reason="no lightning")
needs_transformers = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("accelerate")), reason="no transformers"
)


@cache
def printed(code: str, example: str = "", python: str = sys.executable) -> str:
    """What a script prints, and an example after it; alone, since these packages keep globals."""
    if example:
        path = ROOT / "examples" / "frameworks" / example
        code += f"\nimport runpy\nrunpy.run_path({str(path)!r}, run_name='__main__')\n"
    return commands.printed(code, python=python)


def accuracies(text: str) -> tuple[float, float]:
    """The figures of the last line: plain 0.912, wima 0.934."""
    plain, wima = text.splitlines()[-1].split(", ")
    return float(plain.removeprefix("plain ")), float(wima.removeprefix("wima "))


LIGHTNING = """
import logging, warnings
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from wima.loop.callbacks.lightning import WindowAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen, self.validated = nn.Linear(4, 2), [], []

    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()

    def on_before_zero_grad(self, optimizer):
        self.seen.append(self.net.weight.detach().clone())

    def validation_step(self, batch, _):
        self.validated.append(self.net.weight.detach().clone())
        self.log("loss", self.net(batch[0]).square().mean())
        if self.fails:
            raise ArithmeticError

    fails = False

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = DataLoader(TensorDataset(torch.randn(24, 4, generator=torch.Generator().manual_seed(1))), 4)
how = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)


def fit(callbacks, epochs=2, path=None, module=None, **options):
    module = module or Module()
    checkpoints = [pl.callbacks.ModelCheckpoint(FOLDER, save_last=True)] if path == "save" else []
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[*callbacks, *checkpoints],
                         enable_checkpointing=bool(checkpoints), **how, **options)
    trainer.fit(module, data, data, ckpt_path=path if path and path != "save" else None)
    return module, trainer


import tempfile
from pathlib import Path
FOLDER = tempfile.mkdtemp()

# Training does not change; validation sees the average, and then the weights come back.
plain, _ = fit([])
averaging = WindowAveraging(window=3)
watched, _ = fit([averaging])
assert torch.equal(plain.net.weight, watched.net.weight)
assert averaging.average.calls == 12
walk = [*watched.seen[1:], watched.net.weight.detach()]  # after each step, also the last
mean = torch.stack(walk[-3:]).double().mean(0).float()
torch.testing.assert_close(watched.validated[-1], mean)
assert torch.equal(averaging.average.tensors()["net.weight"], watched.validated[-1])
assert torch.equal(plain.validated[-1], plain.net.weight)

# Steps of the optimizer count, not batches.
averaging = WindowAveraging(window=3)
fit([averaging], epochs=1, accumulate_grad_batches=3)
assert averaging.average.calls == 2

# A failed validation restores the weights.
failing, averaging = Module(), WindowAveraging(window=3)
failing.fails = True
try:
    fit([averaging], module=failing, num_sanity_val_steps=0)
except ArithmeticError:
    twin, _ = fit([], epochs=1)
    assert torch.equal(failing.net.weight, twin.net.weight)
    assert not torch.equal(failing.validated[-1], failing.net.weight)
    averaging.average.update()
else:
    raise AssertionError

# A checkpoint holds the past models.
whole = WindowAveraging(window=9)
fit([whole], epochs=3)
first = WindowAveraging(window=9)
fit([first], epochs=2, path="save")
second = WindowAveraging(window=9)
fit([second], epochs=3, path=str(Path(FOLDER) / "last.ckpt"))
assert second.average.calls == 18
for a, b in zip(whole.average.tensors().values(), second.average.tensors().values()):
    assert torch.equal(a, b)

try:
    WindowAveraging().average
except ValueError as error:
    print(error)
"""


@needs_lightning
def test_lightning_trains_the_same_validates_the_average_and_resumes():
    assert "begins with Trainer.fit" in printed(LIGHTNING, "lightning_digits.py")


@needs_lightning
def test_the_lightning_example_shows_both_models():
    plain, wima = accuracies(printed(LIGHTNING, "lightning_digits.py"))
    assert plain > 0.8 and wima > 0.9  # ten classes


TRAINER = """
import sys, tempfile, warnings
from pathlib import Path
import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from wima.loop.callbacks.transformers import WindowAveraging


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.evaluated = nn.Linear(4, 2), []

    def forward(self, x, labels):
        if not self.training:
            self.evaluated.append(self.net.weight.detach().clone())
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


draw = torch.Generator().manual_seed(1)
data = [{"x": torch.randn(4, generator=draw), "labels": torch.tensor(k % 2)} for k in range(24)]


def train(window=None, epochs=2, folder=None, resume=None, evals=data):
    arguments = TrainingArguments(
        output_dir=folder or tempfile.mkdtemp(), num_train_epochs=epochs, learning_rate=0.1,
        per_device_train_batch_size=2, gradient_accumulation_steps=2, optim="sgd", use_cpu=True,
        lr_scheduler_type="constant", per_device_eval_batch_size=24, eval_strategy="epoch",
        save_strategy="epoch", report_to="none", disable_tqdm=True)
    trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=evals)
    if window:
        trainer.wima = WindowAveraging(trainer, window=window)
        trainer.add_callback(trainer.wima)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


# Training does not change; each evaluation is followed by that of the average.
plain, watched = train(), train(window=4)
assert torch.equal(plain.model.net.weight, watched.model.net.weight)
average = watched.wima.average
assert average.calls == 12 == watched.state.global_step
before, after = watched.model.evaluated[-2:]
assert torch.equal(before, plain.model.net.weight)
assert torch.equal(after, average.tensors()["net.weight"]) and not torch.equal(before, after)
assert sum("eval_loss" in log for log in watched.state.log_history) == 2
assert sum("eval_wima_loss" in log for log in watched.state.log_history) == 2
metrics = watched.evaluate()
assert metrics["eval_loss"] != metrics["eval_wima_loss"]

# Several evaluation sets have their own figures.
several = train(window=4, evals={"a": data[:12], "b": data[12:]})
assert {"eval_a_wima_loss", "eval_b_wima_loss"} <= several.evaluate().keys()

# Past models are in the checkpoints, and come back.
whole, folder = train(window=9, epochs=3), tempfile.mkdtemp()
train(window=9, epochs=2, folder=folder)
assert (Path(folder) / "checkpoint-12" / "wima" / "window.json").is_file()
again = train(window=9, epochs=3, folder=folder, resume=True)
assert again.wima.average.calls == 18
for a, b in zip(whole.wima.average.tensors().values(), again.wima.average.tensors().values()):
    assert torch.equal(a, b)

try:
    WindowAveraging(plain).average
except ValueError as error:
    print(error)
"""


@needs_transformers
def test_trainer_trains_the_same_evaluates_both_and_resumes():
    assert "begins with Trainer.train" in printed(TRAINER, "trainer_digits.py")


@needs_transformers
def test_the_trainer_example_shows_both_models():
    plain, wima = accuracies(printed(TRAINER, "trainer_digits.py"))
    assert plain > 0.8 and wima > 0.9


PFL_RUN = """
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
from wima.loop.callbacks.pfl import WindowAveraging

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
        self.seen = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.seen.append(model.pytorch_model.net.weight.detach().clone())
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
    return module, averaging and averaging.average, walk.seen


plain, _, _ = train(8)
watched, average, _ = train(8, window=3)
assert torch.equal(plain.net.weight, watched.net.weight)
assert average.calls == 8
assert torch.equal(watched.evaluated[-1], average.tensors()["net.weight"])

import tempfile
folder = tempfile.mkdtemp()
_, _, before = train(5, window=7, folder=folder)
_, again, after = train(8, window=7, folder=folder)  # begins with the iteration that was saved in
walk = [*before, *after]
assert len(before) == 5 and len(after) < 7 and again.calls == len(walk)
mean = torch.stack(walk[-7:]).double().mean(0).float()
torch.testing.assert_close(again.tensors()["net.weight"], mean)
print("pfl restored")
"""


def test_pfl_trains_the_same_evaluates_the_average_and_restores():
    python = sys.executable if find_spec("pfl") else str(PFL)
    if not Path(python).exists():
        pytest.skip("pfl-research is not installed, here or by the benchmarks")
    assert "pfl restored" in printed(PFL_RUN, python=python)
