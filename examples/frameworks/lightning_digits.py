"""Lightning with the window average; validation shows both models."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from wima.data.sets.digits import load_digits
from wima.training.callbacks.lightning import WindowAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message=".*does not have many workers")


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


pl.seed_everything(0, verbose=False)
x, y = (torch.tensor(array) for array in load_digits())
train, test = random_split(TensorDataset(x.float() / 16, y), (1400, 397))
loaders = DataLoader(train, 8, shuffle=True), DataLoader(test, 397)

averaging = WindowAveraging(window=100, validate=False)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = pl.Trainer(
    max_epochs=3, accelerator="cpu", callbacks=[averaging], enable_model_summary=False, **quiet
)
module = Digits()
trainer.fit(module, *loaders)

(plain,) = trainer.validate(module, loaders[1], verbose=False)
with averaging.average.applied():
    (wima,) = trainer.validate(module, loaders[1], verbose=False)
print(f"plain {plain['accuracy']:.3f}, wima {wima['accuracy']:.3f}")
