"""Weights & Biases."""

from __future__ import annotations

import os
from typing import Any

from wima.runs import Run
from wima.simulation import Record
from wima.trackers.base import hyperparameters, identity, name_of, needed, scalars

PROJECT = "wima"  # unless WANDB_PROJECT names another


class WandB:
    """Weights & Biases, set up by its own variables: WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""

    def __init__(self) -> None:
        self._wandb = needed("wandb", "wandb", "wandb")
        self._run: Any = None

    def start(self, run: Run) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(run.path)),
            name=name_of(run),
            id=identity(run),
            resume="allow",
            config={**hyperparameters(run.settings), "environment": run.environment},
            settings={"console": "off"},
        )

    def record(self, record: Record) -> None:
        # A run that is resumed on a server starts after the rounds that the server has.
        if record.t >= self._run.starting_step:
            self._run.log(scalars(record), step=record.t)

    def finish(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state == "done" else 1)
