"""One file per method; `BY_NAME` is how settings find them."""

from __future__ import annotations

from wima.algorithms.base import Algorithm, Local, Visit
from wima.algorithms.fedavg import FedAvg

BY_NAME: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
}

__all__ = ["BY_NAME", "Algorithm", "FedAvg", "Local", "Visit"]
