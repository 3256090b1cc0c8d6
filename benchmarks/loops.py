"""What `window="auto"` gains in training loops, beside the last model and a fixed window.

python -m benchmarks --micro loop_auto: no times, but accuracies, a seed per turn.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wima
from benchmarks.report import origin
from wima.data.sets.digits import load_digits

FIXED = 100
BATCH = 4
EPOCHS = 10
RATE, MOMENTUM = 0.3, 0.9  # of SGD; with momentum, a tenth of the rate
ADAM_RATE, CLIP = 0.01, 1.0  # the latter is the largest norm of a gradient


class Split(NamedTuple):
    """Half of digits to train on, the other half held out."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def train(self) -> TensorDataset:
        return TensorDataset(self.x, self.y)


class Net(nn.Sequential):
    """A small network that gives its loss if labels are there, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(x)
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels)}


Trained = tuple[nn.Module, wima.WindowAverage]


def measure(turns: int, epochs: int = EPOCHS) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = [[name, *_row(loop, turns, epochs)] for name, loop in LOOPS.items()]
    columns = ["loop", "last", "auto", "auto − last", "by seed", f"W = {FIXED}", "W of auto"]
    text = (
        f"Digits, half of them held out; MLP 64-64-10, batches of {BATCH}, {epochs} epochs, "
        f"constant learning rates: {RATE} for SGD, {RATE * (1 - MOMENTUM):.2f} with momentum "
        f"{MOMENTUM}, {ADAM_RATE} for Adam, whose gradients are clipped to norm {CLIP}. Accuracy "
        "in % on the held-out half after the last step: mean ± standard deviation over seeds "
        f"0 to {turns - 1}, each with its own split."
    )
    title = "The window that chooses itself, in training loops"
    fields = {"name": "loop_auto", "title": title, "text": text, "origin": origin()}
    return {"kind": "micro", **fields, "tables": [{"columns": columns, "rows": rows}]}


def _row(loop: Callable[..., Trained], seeds: int, epochs: int) -> list[str]:
    found = [_accuracies(loop, seed, epochs) for seed in range(seeds)]
    last, auto, fixed, used = zip(*found, strict=True)
    gains = [a - b for a, b in zip(auto, last, strict=True)]
    each = ", ".join(f"{gain:+.2f}" for gain in gains)
    chosen = ", ".join(str(window) for window in used)
    return [_spread(last), _spread(auto), f"{mean(gains):+.2f}", each, _spread(fixed), chosen]


def _spread(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}"


def _accuracies(
    loop: Callable[..., Trained], seed: int, epochs: int
) -> tuple[float, float, float, int]:
    """Of the last model, of auto and of the fixed window; how many models auto averages."""
    split, found = _split(seed), []
    for window in ("auto", FIXED):
        torch.manual_seed(seed)
        model, average = loop(Net(), split, window, epochs)
        last = _accuracy(model, split)
        with average.applied():
            found.append((last, _accuracy(model, split), average.n_averaged))
    (last, auto, used), (again, fixed, _) = found
    assert last == again  # averaging does not change training
    return last, auto, fixed, used


def _split(seed: int) -> Split:
    x, y = (torch.tensor(array) for array in load_digits())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(x) // 2], order[len(x) // 2 :]
    x = x.float() / 16
    return Split(x[train], y[train], x[test], y[test])


@torch.no_grad()
def _accuracy(model: nn.Module, split: Split) -> float:
    right = model(split.x_test).argmax(1) == split.y_test
    return 100 * right.float().mean().item()


def _plain(model: Net, split: Split, window: Any, epochs: int) -> Trained:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    return _loop(model, split, wima.WindowAverage(model, window), optimizer, epochs)


def _clipped(model: Net, split: Split, window: Any, epochs: int) -> Trained:
    optimizer = torch.optim.Adam(model.parameters(), ADAM_RATE)
    return _loop(model, split, wima.WindowAverage(model, window), optimizer, epochs, CLIP)


def _loop(
    model: Net,
    split: Split,
    average: wima.WindowAverage,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    clip: float = float("inf"),
) -> Trained:
    for _ in range(epochs):
        for x, y in DataLoader(split.train, BATCH, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            average.update()
    return model, average


def _lightning(model: Net, split: Split, window: Any, epochs: int) -> Trained:
    import lightning.pytorch as pl

    from wima.training.callbacks.lightning import WindowAveraging

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            rate = RATE * (1 - MOMENTUM)
            return torch.optim.SGD(self.parameters(), rate, momentum=MOMENTUM)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    averaging, module = WindowAveraging(window), Module()
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[averaging], **dict.fromkeys(off, False)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(split.train, BATCH, shuffle=True))
    return module, averaging.average


def _trainer(model: Net, split: Split, window: Any, epochs: int) -> Trained:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from wima.training.callbacks.transformers import WindowAveraging

    examples = [{"x": x, "labels": y} for x, y in split.train]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=ADAM_RATE,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=torch.initial_seed(),
        )
        trainer = Trainer(model, arguments, train_dataset=examples)
        averaging = WindowAveraging(trainer, window)
        trainer.add_callback(averaging)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model, averaging.average


LOOPS: dict[str, Callable[..., Trained]] = {
    "SGD": _plain,
    "Adam, clipped": _clipped,
    "Lightning, SGD with momentum": _lightning,
    "Trainer, AdamW, clipped": _trainer,
}
