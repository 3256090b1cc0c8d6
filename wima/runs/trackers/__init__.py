"""Trackers: services that record runs in addition to their folders."""

from __future__ import annotations

from wima.runs.trackers.base import Tracker
from wima.runs.trackers.mlflow import MLflow
from wima.runs.trackers.tensorboard import TensorBoard
from wima.runs.trackers.wandb import WandB

BY_NAME: dict[str, type[Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
