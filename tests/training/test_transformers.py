"""The window average inside the Trainer of transformers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.frameworks import RULE, accuracies, trained

pytestmark = pytest.mark.world

needs_transformers = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("accelerate")), reason="no transformers"
)

TRAINER = (
    RULE
    + """
import sys, tempfile, warnings
from pathlib import Path
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from wima.training.callbacks.transformers import WindowAveraging


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


def train(window=None, epochs=2, folder=None, resume=None, evals=data, noted=None):
    arguments = TrainingArguments(
        output_dir=folder or tempfile.mkdtemp(), num_train_epochs=epochs, learning_rate=0.1,
        per_device_train_batch_size=2, gradient_accumulation_steps=2, optim="sgd", use_cpu=True,
        lr_scheduler_type="constant", per_device_eval_batch_size=24, eval_strategy="epoch",
        save_strategy="epoch", report_to="none", disable_tqdm=True)
    trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=evals, callbacks=noted)
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


# Gradients choose the window: those that the optimizer steps with, accumulated and clipped.
class Noted(TrainerCallback):
    def __init__(self):
        self.models, self.gradients = [], []

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradients.append(copies(p.grad for p in model.parameters()))

    def on_step_end(self, args, state, control, model, **_):
        self.models.append(copies(model.parameters()))


noted, folder = Noted(), tempfile.mkdtemp()
auto = train(window="auto", epochs=6, noted=[noted])
assert follows_the_rule(auto.wima.average, noted.models, noted.gradients)
train(window="auto", epochs=4, folder=folder)
again = train(window="auto", epochs=6, folder=folder, resume=True)
assert again.wima.average.calls == auto.wima.average.calls
assert torch.equal(*(copies(t.wima.average.tensors().values()) for t in (again, auto)))

without_training(WindowAveraging(plain))
"""
)


@needs_transformers
def test_trainer_trains_the_same_evaluates_both_and_resumes_as_its_example_does():
    text = trained(TRAINER, "trainer_digits.py")
    assert "Trainer.train creates it" in text
    plain, wima = accuracies(text)
    assert plain > 0.8 and wima > 0.9
