"""What is measured: four shapes of federated training, on synthetic data.

Every peer trains on the same arrays: `prepare` writes them to the cache once, `load` maps them.
This file needs only numpy, so that it runs in every peer's environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

CLIENTS = 100
COHORT = 10
VOCABULARY = 90
EVALUATION_BATCH = 256
CHECK = 200  # examples of the fixed batch on which the final models are compared
BLOCK = 4  # pixels; a side of a block in the patterns of images
WRONG = 0.1  # share of images with a random label, so that losses do not vanish
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """FedAvg with plain SGD, one epoch per visit; the last batch may be short."""

    model: str
    shape: tuple[int, ...]  # of one example
    classes: int
    samples: int  # per client
    batch: int
    lr: float
    rounds: int  # per turn, unless the command line says otherwise

    @property
    def sequences(self) -> bool:
        """Whether examples are rows of characters, with a label at every place."""
        return len(self.shape) == 1


WORKLOADS = {
    "digits": Workload(
        model="MLP 64-64-10", shape=(1, 8, 8), classes=10, samples=15, batch=15, lr=0.1, rounds=100
    ),
    "femnist": Workload(
        model="FEMNIST CNN", shape=(1, 28, 28), classes=62, samples=200, batch=10, lr=0.1, rounds=3
    ),
    "shakespeare": Workload(
        model="LSTM 2x256", shape=(80,), classes=VOCABULARY, samples=40, batch=4, lr=1.0, rounds=3
    ),
    "cifar": Workload(
        model="ResNet20-GN", shape=(3, 32, 32), classes=10, samples=500, batch=100, lr=0.1, rounds=1
    ),
}


class Data(NamedTuple):
    """Examples, client after client, and a fixed batch to compare final models on."""

    x: np.ndarray
    y: np.ndarray
    x_check: np.ndarray
    y_check: np.ndarray

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """What models are evaluated on: as many examples as a round trains on."""
        rows = len(self.x) // CLIENTS * COHORT
        return self.x[:rows], self.y[:rows]

    def client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples and labels of client i: views, not copies."""
        samples = len(self.x) // CLIENTS
        rows = slice(i * samples, (i + 1) * samples)
        return self.x[rows], self.y[rows]


def generate(workload: Workload, seed: int = SEED) -> Data:
    """The arrays of a workload: learnable, the same from the same seed."""
    random = np.random.default_rng(seed)
    make = _sequences if workload.sequences else _images
    x, y = make(workload, CLIENTS * workload.samples + CHECK, random)
    return Data(x[CHECK:], y[CHECK:], x[:CHECK], y[:CHECK])


def _images(
    workload: Workload, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A pattern of blocks per class, under as much noise; some labels are wrong."""
    channels, side, _ = workload.shape
    blocks = random.standard_normal((workload.classes, channels, side // BLOCK, side // BLOCK))
    patterns = blocks.repeat(BLOCK, axis=2).repeat(BLOCK, axis=3).astype(np.float32)
    y = random.integers(workload.classes, size=count)
    x = random.standard_normal((count, *workload.shape), dtype=np.float32)
    for start in range(0, count, 1000):  # in pieces: CIFAR's patterns would fill 600 MB
        piece = slice(start, start + 1000)
        x[piece] = (x[piece] + patterns[y[piece]]) / 2
    wrong = random.random(count) < WRONG
    return x, np.where(wrong, random.integers(workload.classes, size=count), y)


def _sequences(
    workload: Workload, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which every other character, on average, follows from the one before.

    Character 0 stands for padding and does not occur.
    """
    length, successor = workload.shape[0], 1 + random.permutation(workload.classes - 1)
    text = random.integers(1, workload.classes, size=(count, length + 1))
    follows = random.random((count, length + 1)) < 0.5
    for k in range(1, length + 1):
        text[:, k] = np.where(follows[:, k], successor[text[:, k - 1] - 1], text[:, k])
    return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])


def cache() -> Path:
    """Where environments and data are kept: $WIMA_BENCHMARKS, or ~/.cache/wima-benchmarks."""
    return Path(os.environ.get("WIMA_BENCHMARKS") or "~/.cache/wima-benchmarks").expanduser()


def _folder(name: str) -> Path:
    w = WORKLOADS[name]
    shape = "x".join(map(str, w.shape))
    return cache() / "data" / f"{name}-{CLIENTS}x{w.samples}x{shape}-seed{SEED}-wrong{WRONG}"


def prepare(name: str) -> None:
    """Write the arrays of a workload to the cache, unless they are there."""
    folder = _folder(name)
    if folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    for field, array in generate(WORKLOADS[name])._asdict().items():
        np.save(draft / f"{field}.npy", array)
    draft.rename(folder)


def load(name: str) -> Data:
    """The arrays of a workload, mapped (copy-on-write, since torch wants to be able to write)."""
    folder = _folder(name)
    return Data(*(np.load(folder / f"{field}.npy", mmap_mode="c") for field in Data._fields))
