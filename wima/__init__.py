"""Federated learning on heterogeneous data, with window-based model averaging (WIMA)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wima.algorithms.adabest import AdaBest
    from wima.algorithms.base import Algorithm, Local, Visit
    from wima.algorithms.check import check_algorithm
    from wima.algorithms.fedacg import FedACG
    from wima.algorithms.fedavg import FedAvg
    from wima.algorithms.fedcm import FedCM
    from wima.algorithms.feddyn import FedDyn
    from wima.algorithms.fedprox import FedProx
    from wima.algorithms.mime import Mime
    from wima.algorithms.mimelite import MimeLite
    from wima.algorithms.scaffold import Scaffold
    from wima.averaging import EMA, LAWA, SWA, WIMA, Averager, Last
    from wima.averaging.arrays import ArrayWindow
    from wima.averaging.loop import WindowAverage
    from wima.data.batches import Batch, LocalSGD
    from wima.data.federated import FederatedData
    from wima.errors import Diverged, RunError, UsageError
    from wima.faults import Faults
    from wima.saved.mean import average_files
    from wima.schedules import Constant, Cosine, Cyclic, Exponential, Schedule
    from wima.server_opt import SGD, Adagrad, Adam, Momentum, ServerOpt, Yogi
    from wima.simulation import Record, Result, Simulation, run, simulate
    from wima.task import Task, make_task
    from wima.vector import Flat, Layout

__version__ = "0.1.0"

# Name -> module.  Loaded at first use, so that `import wima` does not wait for torch.
_WHERE = {
    "AdaBest": "algorithms.adabest",
    "Adagrad": "server_opt",
    "Adam": "server_opt",
    "Algorithm": "algorithms.base",
    "ArrayWindow": "averaging.arrays",
    "Averager": "averaging",
    "Batch": "data.batches",
    "Constant": "schedules",
    "Cosine": "schedules",
    "Cyclic": "schedules",
    "Diverged": "errors",
    "EMA": "averaging",
    "Exponential": "schedules",
    "Faults": "faults",
    "FedACG": "algorithms.fedacg",
    "FedAvg": "algorithms.fedavg",
    "FedCM": "algorithms.fedcm",
    "FedDyn": "algorithms.feddyn",
    "FedProx": "algorithms.fedprox",
    "FederatedData": "data.federated",
    "Flat": "vector",
    "LAWA": "averaging",
    "Last": "averaging",
    "Layout": "vector",
    "Local": "algorithms.base",
    "LocalSGD": "data.batches",
    "Mime": "algorithms.mime",
    "MimeLite": "algorithms.mimelite",
    "Momentum": "server_opt",
    "Record": "simulation",
    "Result": "simulation",
    "RunError": "errors",
    "SGD": "server_opt",
    "SWA": "averaging",
    "Scaffold": "algorithms.scaffold",
    "Schedule": "schedules",
    "ServerOpt": "server_opt",
    "Simulation": "simulation",
    "Task": "task",
    "UsageError": "errors",
    "Visit": "algorithms.base",
    "WIMA": "averaging",
    "WindowAverage": "averaging.loop",
    "Yogi": "server_opt",
    "average_files": "saved.mean",
    "check_algorithm": "algorithms.check",
    "make_task": "task",
    "run": "simulation",
    "simulate": "simulation",
}

__all__ = [
    "EMA",
    "LAWA",
    "SGD",
    "SWA",
    "WIMA",
    "AdaBest",
    "Adagrad",
    "Adam",
    "Algorithm",
    "ArrayWindow",
    "Averager",
    "Batch",
    "Constant",
    "Cosine",
    "Cyclic",
    "Diverged",
    "Exponential",
    "Faults",
    "FedACG",
    "FedAvg",
    "FedCM",
    "FedDyn",
    "FedProx",
    "FederatedData",
    "Flat",
    "Last",
    "Layout",
    "Local",
    "LocalSGD",
    "Mime",
    "MimeLite",
    "Momentum",
    "Record",
    "Result",
    "RunError",
    "Scaffold",
    "Schedule",
    "ServerOpt",
    "Simulation",
    "Task",
    "UsageError",
    "Visit",
    "WindowAverage",
    "Yogi",
    "average_files",
    "check_algorithm",
    "make_task",
    "run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'wima' has no attribute {name!r}")
    return getattr(import_module(f"wima.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
