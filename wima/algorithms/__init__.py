"""One file per method; settings look them up in `BY_NAME`."""

from __future__ import annotations

from wima.algorithms.adabest import AdaBest as AdaBest
from wima.algorithms.base import Algorithm as Algorithm, Local as Local, Visit as Visit
from wima.algorithms.fedacg import FedACG as FedACG
from wima.algorithms.fedavg import FedAvg as FedAvg
from wima.algorithms.fedcm import FedCM as FedCM
from wima.algorithms.feddyn import FedDyn as FedDyn
from wima.algorithms.fedprox import FedProx as FedProx
from wima.algorithms.mime import Mime as Mime
from wima.algorithms.mimelite import MimeLite as MimeLite
from wima.algorithms.scaffold import Scaffold as Scaffold

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
