"""The setting of Flower's baseline niid_bench on CIFAR-10, to compare with its published numbers.

Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study (ICDE 2022).  Ten clients
take part in every round; a small network, ten epochs per visit, client momentum.  Run it in the
folder above examples/:

    wima run examples/results/niid_bench.toml
    wima run examples/results/niid_bench.toml algorithm=scaffold
    wima run examples/results/niid_bench.toml algorithm=scaffold alpha=0     # one class per client
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import wima
from wima.data.cache import fetch_and_prepare, open_ready, ready
from wima.data.sets.cifar import CIFAR10
from wima.data.transform import draw
from wima.models.init import channels_last


def dirichlet(labels, clients, alpha, seed):
    """The client of each example.

    Each class is divided by shares from a Dirichlet distribution with alpha per *client*.  A client
    that has its part of all examples gets none of the classes that follow.
    """
    random = np.random.default_rng(seed)
    owner = np.full(len(labels), -1)
    sizes = np.zeros(clients, int)
    while sizes.min() < 10:
        sizes[:] = 0
        for label in np.unique(labels):
            examples = random.permutation(np.flatnonzero(labels == label))
            share = random.dirichlet(np.full(clients, alpha)) * (sizes < len(labels) / clients)
            ends = (len(examples) * (share / share.sum()).cumsum()).astype(int)[:-1]
            for client, part in enumerate(np.split(examples, ends)):
                owner[part] = client
                sizes[client] += len(part)
    return owner


class Reflected:
    """Bytes to numbers from 0 to 1; in training, padded by reflection, cropped and flipped."""

    def train(self, x, address):
        padded = F.pad(self.evaluate(x), (4, 4, 4, 4), mode="reflect")
        tops, lefts, flips = map(torch.from_numpy, draw(len(x), 9, address))
        places = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # all crops, as a view
        crops = places[torch.arange(len(x)), :, tops, lefts]
        return torch.where(flips.view(-1, 1, 1, 1), crops.flip(-1), crops)

    def evaluate(self, x):
        return x.to(torch.float32) / 255


def silos(clients=10, alpha=0.5, seed=42):
    """CIFAR-10 on a few clients; alpha = 0: one class each."""
    if not ready("cifar10").is_dir():
        fetch_and_prepare(CIFAR10)
    arrays, _ = open_ready("cifar10")
    x, y = arrays["x"], np.asarray(arrays["y"])
    owner = dirichlet(y, clients, alpha, seed) if alpha else y % clients
    train = wima.FederatedData.from_arrays(x, y, owner)
    return wima.Bundle(train, arrays["x_test"], arrays["y_test"], 10, Reflected())


class Network(nn.Module):
    """Two 5x5 convolutions of 6 and 16 channels, 120 and 84 hidden units: 62,006 parameters."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),  # equal to a ReLU before pooling, and cheaper
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def forward(self, x):
        return self.layers(channels_last(x))
