"""One file per method; settings look them up in `BY_NAME`."""

from __future__ import annotations

from wima.algorithms.adabest import AdaBest
from wima.algorithms.base import Algorithm, Local, Visit
from wima.algorithms.fedacg import FedACG
from wima.algorithms.fedavg import FedAvg
from wima.algorithms.fedcm import FedCM
from wima.algorithms.feddyn import FedDyn
from wima.algorithms.fedprox import FedProx
from wima.algorithms.mime import Mime
from wima.algorithms.mimelite import MimeLite
from wima.algorithms.scaffold import Scaffold

BY_NAME: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "adabest": AdaBest,
    "fedcm": FedCM,
    "fedacg": FedACG,
    "mime": Mime,
    "mimelite": MimeLite,
}

__all__ = [
    "BY_NAME",
    "AdaBest",
    "Algorithm",
    "FedACG",
    "FedAvg",
    "FedCM",
    "FedDyn",
    "FedProx",
    "Local",
    "Mime",
    "MimeLite",
    "Scaffold",
    "Visit",
]
