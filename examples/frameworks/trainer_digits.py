"""Hugging Face's Trainer with the window average; every evaluation shows both models."""

import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, random_split
from transformers import EvalPrediction, Trainer, TrainingArguments

from wima.data.sets.digits import load_digits
from wima.training.callbacks.transformers import WindowAveraging


class Digits(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.x, self.y = (torch.tensor(array) for array in load_digits())

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[k].float() / 16, "labels": self.y[k]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(found: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))}


torch.manual_seed(0)
train, test = random_split(Digits(), (1400, 397))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=3,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=397,
        optim="sgd",
        learning_rate=0.5,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        Net(), arguments, train_dataset=train, eval_dataset=test, compute_metrics=accuracy
    )
    trainer.add_callback(WindowAveraging(trainer, window=100))
    trainer.train()
    metrics = trainer.evaluate()
print(f"plain {metrics['eval_accuracy']:.3f}, wima {metrics['eval_wima_accuracy']:.3f}")
