"""Federated learning on heterogeneous data, with window-based model averaging (WIMA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wima.core.lazy import lazy_names
from wima.core.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as below, for type checkers
    from wima.algorithms import (
        AdaBest as AdaBest,
        Algorithm as Algorithm,
        FedACG as FedACG,
        FedAvg as FedAvg,
        FedCM as FedCM,
        FedDyn as FedDyn,
        FedProx as FedProx,
        Local as Local,
        Mime as Mime,
        MimeLite as MimeLite,
        Scaffold as Scaffold,
        Visit as Visit,
    )
    from wima.algorithms.server_opt import (
        SGD as SGD,
        Adagrad as Adagrad,
        Adam as Adam,
        Momentum as Momentum,
        ServerOpt as ServerOpt,
        Yogi as Yogi,
    )
    from wima.averaging import (
        EMA as EMA,
        LAWA as LAWA,
        SWA as SWA,
        WIMA as WIMA,
        Averager as Averager,
        Last as Last,
        PowerEMA as PowerEMA,
    )
    from wima.core.errors import (
        Diverged as Diverged,
        RunError as RunError,
        UsageError as UsageError,
    )
    from wima.core.vector import Flat as Flat, Layout as Layout
    from wima.data.batches import Batch as Batch, LocalSGD as LocalSGD
    from wima.data.bundle import Bundle as Bundle
    from wima.data.federated import FederatedData as FederatedData
    from wima.model_files.mean import average_files as average_files
    from wima.runs.in_python import run as run
    from wima.runs.run import Run as Run, read_run as read_run
    from wima.simulation.check import check_algorithm as check_algorithm
    from wima.simulation.faults import Faults as Faults
    from wima.simulation.measures.base import Examples as Examples, Measure as Measure
    from wima.simulation.measures.finetune import FineTune as FineTune
    from wima.simulation.privacy import Gaussian as Gaussian
    from wima.simulation.schedules import (
        Constant as Constant,
        Cosine as Cosine,
        Cyclic as Cyclic,
        Exponential as Exponential,
        Schedule as Schedule,
    )
    from wima.simulation.simulate import (
        Record as Record,
        Simulation as Simulation,
        simulate as simulate,
    )
    from wima.simulation.task import Task as Task, make_task as make_task
    from wima.training.array_window import ArrayWindow as ArrayWindow
    from wima.training.window_average import WindowAverage as WindowAverage

__all__, __getattr__ = lazy_names(
    "wima",
    {
        "algorithms": "AdaBest FedACG FedAvg FedCM FedDyn FedProx Mime MimeLite Scaffold",
        "algorithms.base": "Algorithm Local Visit",
        "algorithms.server_opt": "SGD Adagrad Adam Momentum ServerOpt Yogi",
        "averaging": "EMA LAWA SWA WIMA Averager Last PowerEMA",
        "core.errors": "Diverged RunError UsageError",
        "core.vector": "Flat Layout",
        "data.batches": "Batch LocalSGD",
        "data.bundle": "Bundle",
        "data.federated": "FederatedData",
        "model_files.mean": "average_files",
        "runs.in_python": "run",
        "runs.run": "Run read_run",
        "simulation.check": "check_algorithm",
        "simulation.faults": "Faults",
        "simulation.measures.base": "Examples Measure",
        "simulation.measures.finetune": "FineTune",
        "simulation.privacy": "Gaussian",
        "simulation.schedules": "Constant Cosine Cyclic Exponential Schedule",
        "simulation.simulate": "Record Simulation simulate",
        "simulation.task": "Task make_task",
        "training.array_window": "ArrayWindow",
        "training.window_average": "WindowAverage",
    },
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
