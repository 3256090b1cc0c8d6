"""Federated learning on heterogeneous data, with window-based model averaging (WIMA)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wima.algorithms.base import Algorithm, Local, Visit
    from wima.algorithms.check import check_algorithm
    from wima.algorithms.fedavg import FedAvg
    from wima.averaging import WIMA, Averager, Last
    from wima.data.batches import Batch, LocalSGD
    from wima.data.federated import FederatedData
    from wima.errors import RunError, UsageError
    from wima.server_opt import SGD, ServerOpt
    from wima.simulation import Record, Result, Simulation, run, simulate
    from wima.task import Task, make_task
    from wima.vector import Flat, Layout

__version__ = "0.1.0"

# Name -> module.  Loaded at first use, so that `import wima` does not wait for torch.
_WHERE = {
    "Algorithm": "algorithms.base",
    "Averager": "averaging",
    "Batch": "data.batches",
    "FedAvg": "algorithms.fedavg",
    "FederatedData": "data.federated",
    "Flat": "vector",
    "Last": "averaging",
    "Layout": "vector",
    "Local": "algorithms.base",
    "LocalSGD": "data.batches",
    "Record": "simulation",
    "Result": "simulation",
    "RunError": "errors",
    "SGD": "server_opt",
    "ServerOpt": "server_opt",
    "Simulation": "simulation",
    "Task": "task",
    "UsageError": "errors",
    "Visit": "algorithms.base",
    "WIMA": "averaging",
    "check_algorithm": "algorithms.check",
    "make_task": "task",
    "run": "simulation",
    "simulate": "simulation",
}

__all__ = [
    "SGD",
    "WIMA",
    "Algorithm",
    "Averager",
    "Batch",
    "FedAvg",
    "FederatedData",
    "Flat",
    "Last",
    "Layout",
    "Local",
    "LocalSGD",
    "Record",
    "Result",
    "RunError",
    "ServerOpt",
    "Simulation",
    "Task",
    "UsageError",
    "Visit",
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
