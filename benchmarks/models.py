"""The models of the workloads in torch, for every peer that trains torch modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import EVALUATION_BATCH, SEED, VOCABULARY, Data
from wima.models import MLP, FemnistCNN, ResNet, ShakespeareLSTM


class StockCNN(nn.Sequential):
    """The FEMNIST network as one writes it; the names of its parameters are wima's."""

    def __init__(self, classes: int = 62) -> None:
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(1, 32, 3),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(32, 64, 3),
                relu2=nn.ReLU(),
                pool=nn.MaxPool2d(2),
                dropout1=nn.Dropout(0.25),
                flatten=nn.Flatten(),
                hidden=nn.Linear(9216, 128),
                relu3=nn.ReLU(),
                dropout2=nn.Dropout(0.5),
                classifier=nn.Linear(128, classes),
            )
        )


class StockResNet(ResNet):
    """The CIFAR network with images as they come: channels first."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.conv(x)).relu_()).mean(dim=(2, 3))
        return self.classifier(x)


class StockLSTM(nn.Module):
    """The Shakespeare network as one writes it with torch's own LSTM."""

    def __init__(self, vocabulary: int = VOCABULARY, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(ids))[0])


TUNED = {"digits": MLP, "femnist": FemnistCNN, "shakespeare": ShakespeareLSTM, "cifar": ResNet}
STOCK = {"digits": MLP, "femnist": StockCNN, "shakespeare": StockLSTM, "cifar": StockResNet}


def make_model(name: str) -> nn.Module:
    """The model of a workload as one writes it, with the initial weights of wima's."""
    model, tensors = STOCK[name](), make_tuned(name).state_dict()
    if name == "shakespeare":  # torch's LSTM has another second bias
        return model
    if name == "femnist":  # images flattened channel by channel, not pixel by pixel
        weight = tensors["hidden.weight"].view(-1, 12, 12, 64)
        tensors["hidden.weight"] = weight.permute(0, 3, 1, 2).flatten(1)
    model.load_state_dict(tensors)
    return model


def make_tuned(name: str) -> nn.Module:
    """The same model as wima ships it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return TUNED[name]()


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


def evaluation_batches(data: Data) -> list[tuple[Tensor, Tensor]]:
    """The examples that models are evaluated on."""
    parts = (torch.from_numpy(array).split(EVALUATION_BATCH) for array in data.test)
    return list(zip(*parts, strict=True))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Mean loss and accuracy, as one writes it."""
    model.eval()
    total, correct, count = 0.0, 0, 0
    for x, y in batches:
        output = model(x)
        total += loss(output, y).item() * y.numel()
        correct += int((output.argmax(dim=-1) == y).sum())
        count += y.numel()
    return total / count, correct / count


def train(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    """SGD steps as everyone writes them."""
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
