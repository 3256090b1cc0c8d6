"""Federated learning on heterogeneous data, with window-based model averaging (WIMA)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wima.core.version import __version__ as __version__

if TYPE_CHECKING:
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
    from wima.algorithms.server_opt import SGD, Adagrad, Adam, Momentum, ServerOpt, Yogi
    from wima.averaging import EMA, LAWA, SWA, WIMA, Averager, Last
    from wima.core.errors import Diverged, RunError, UsageError
    from wima.core.vector import Flat, Layout
    from wima.data.batches import Batch, LocalSGD
    from wima.data.federated import FederatedData
    from wima.engine.faults import Faults
    from wima.loop.array_window import ArrayWindow
    from wima.loop.window_average import WindowAverage
    from wima.saved.mean import average_files
    from wima.simulation.check import check_algorithm
    from wima.simulation.schedules import Constant, Cosine, Cyclic, Exponential, Schedule
    from wima.simulation.simulation import Record, Result, Simulation, run, simulate
    from wima.task.task import Task, make_task

# Name -> module.  Loaded at first use, so that `import wima` does not wait for torch.
_WHERE = {
    "AdaBest": "algorithms.adabest",
    "Adagrad": "algorithms.server_opt",
    "Adam": "algorithms.server_opt",
    "Algorithm": "algorithms.base",
    "ArrayWindow": "loop.array_window",
    "Averager": "averaging",
    "Batch": "data.batches",
    "Constant": "simulation.schedules",
    "Cosine": "simulation.schedules",
    "Cyclic": "simulation.schedules",
    "Diverged": "core.errors",
    "EMA": "averaging",
    "Exponential": "simulation.schedules",
    "Faults": "engine.faults",
    "FedACG": "algorithms.fedacg",
    "FedAvg": "algorithms.fedavg",
    "FedCM": "algorithms.fedcm",
    "FedDyn": "algorithms.feddyn",
    "FedProx": "algorithms.fedprox",
    "FederatedData": "data.federated",
    "Flat": "core.vector",
    "LAWA": "averaging",
    "Last": "averaging",
    "Layout": "core.vector",
    "Local": "algorithms.base",
    "LocalSGD": "data.batches",
    "Mime": "algorithms.mime",
    "MimeLite": "algorithms.mimelite",
    "Momentum": "algorithms.server_opt",
    "Record": "simulation.simulation",
    "Result": "simulation.simulation",
    "RunError": "core.errors",
    "SGD": "algorithms.server_opt",
    "SWA": "averaging",
    "Scaffold": "algorithms.scaffold",
    "Schedule": "simulation.schedules",
    "ServerOpt": "algorithms.server_opt",
    "Simulation": "simulation.simulation",
    "Task": "task.task",
    "UsageError": "core.errors",
    "Visit": "algorithms.base",
    "WIMA": "averaging",
    "WindowAverage": "loop.window_average",
    "Yogi": "algorithms.server_opt",
    "average_files": "saved.mean",
    "check_algorithm": "simulation.check",
    "make_task": "task.task",
    "run": "simulation.simulation",
    "simulate": "simulation.simulation",
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
