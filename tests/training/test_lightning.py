"""The window average inside Lightning's trainer."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.frameworks import RULE, accuracies, trained

pytestmark = pytest.mark.world

needs_lightning = pytest.mark.skipif(not find_spec("lightning"), reason="no lightning")

LIGHTNING = (
    RULE
    + """
import logging, warnings
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from wima.training.callbacks.lightning import WindowAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen, self.validated = nn.Linear(4, 2), [], []

    def training_step(self, batch, _):
        return (self.net(batch[0]) - batch[0][:, :2].abs()).square().mean()  # never fitted

    def on_before_zero_grad(self, optimizer):
        self.seen.append(self.net.weight.detach().clone())

    def validation_step(self, batch, _):
        self.validated.append(self.net.weight.detach().clone())
        self.log("loss", self.net(batch[0]).square().mean())
        if self.fails:
            raise ArithmeticError

    fails = False

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)


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


# Gradients choose the window: those of a step of the optimizer, of one batch or of several.
class Noted(pl.Callback):
    def __init__(self):
        self.models, self.gradients = [], []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.gradients.append(copies(p.grad for p in module.parameters()))

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.models.append(copies(module.parameters()))


for accumulated in (1, 2):
    noted, auto = Noted(), WindowAveraging(window="auto")
    module, _ = fit([noted, auto], epochs=6, accumulate_grad_batches=accumulated)
    models = [*noted.models[1:], copies(module.parameters())]
    assert follows_the_rule(auto.average, models, noted.gradients)
fit([WindowAveraging(window="auto")], epochs=4, path="save")
again = WindowAveraging(window="auto")
resumed, _ = fit([again], epochs=6, path=str(Path(FOLDER) / "last-v1.ckpt"))
whole = WindowAveraging(window="auto")
fit([whole], epochs=6)
assert again.average.calls == whole.average.calls
assert torch.equal(*(copies(a.average.tensors().values()) for a in (again, whole)))

without_training(WindowAveraging())
"""
)


@needs_lightning
def test_lightning_trains_the_same_validates_the_average_and_resumes_as_its_example_does():
    text = trained(LIGHTNING, "lightning_digits.py")
    assert "Trainer.fit creates it" in text
    plain, wima = accuracies(text)
    assert plain > 0.8 and wima > 0.9  # ten classes
