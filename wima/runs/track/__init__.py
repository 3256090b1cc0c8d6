"""Trackers: services that record runs in addition to their folders."""

from __future__ import annotations

from wima.runs.track.base import Tracker
from wima.runs.track.mlflow import MLflow
from wima.runs.track.tensorboard import TensorBoard
from wima.runs.track.wandb import WandB

BY_NAME: dict[str, type[Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}
