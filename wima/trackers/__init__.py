"""Optional places that runs are recorded in besides their folders."""

from __future__ import annotations

from wima.trackers.base import Tracker
from wima.trackers.mlflow import MLflow
from wima.trackers.tensorboard import TensorBoard
from wima.trackers.wandb import WandB

BY_NAME: dict[str, type[Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
