"""Federated learning on heterogeneous data, with window-based model averaging (WIMA)."""

from wima.algorithms import *  # noqa: F403
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
from wima.core.version import __version__ as __version__
from wima.data.federated import Bundle as Bundle, FederatedData as FederatedData
from wima.model_files.mean import average_files as average_files
from wima.runs.in_python import run as run
from wima.runs.run import Run as Run, read_run as read_run
from wima.simulation.check import check_algorithm as check_algorithm
from wima.simulation.measures.base import Measure as Measure
from wima.simulation.measures.finetune import FineTune as FineTune
from wima.simulation.options import (
    Constant as Constant,
    Cosine as Cosine,
    Cyclic as Cyclic,
    Exponential as Exponential,
    Faults as Faults,
    LocalSGD as LocalSGD,
    Schedule as Schedule,
)
from wima.simulation.privacy import Gaussian as Gaussian
from wima.simulation.simulate import (
    Record as Record,
    Simulation as Simulation,
    simulate as simulate,
)
from wima.simulation.task import Task as Task, make_task as make_task
from wima.simulation.workspace import Batch as Batch
from wima.training.array_window import ArrayWindow as ArrayWindow
from wima.training.window_average import WindowAverage as WindowAverage

Result = Run  # the name in version 0.1.0
