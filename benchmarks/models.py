"""The models of the workloads in torch, for every peer that trains torch modules."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import SEED, VOCABULARY, Data
from wima.models import MLP, FemnistCNN, ResNet20


class StockLSTM(nn.Module):
    """The Shakespeare network as one writes it with torch's own LSTM."""

    def __init__(self, vocabulary: int = VOCABULARY, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(ids))[0])


MODELS = {"digits": MLP, "femnist": FemnistCNN, "shakespeare": StockLSTM, "cifar": ResNet20}


def make_model(name: str) -> nn.Module:
    """The model of a workload, with the same initial weights in every peer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return MODELS[name]()


def loss(output: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy, of images and of every place of a row of characters alike."""
    return F.cross_entropy(output.flatten(0, -2), y.flatten())


@torch.no_grad()
def check_loss(model: nn.Module, data: Data) -> float:
    """The loss on the fixed batch, in evaluation mode."""
    was_training = model.training
    model.eval()
    value = loss(model(torch.from_numpy(data.x_check)), torch.from_numpy(data.y_check))
    model.train(was_training)
    return float(value)


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    """SGD steps as everyone writes them."""
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
