"""Weights & Biases."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from wima.runs.folder import Run
from wima.runs.track.base import hyperparameters, identity, name_of, needed, scalars
from wima.simulation.simulate import Record

PROJECT = "wima"  # unless WANDB_PROJECT is set


class WandB:
    """Weights & Biases, configured by its variables: WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""

    def __init__(self) -> None:
        self._wandb = needed("wandb", "wandb", "wandb")
        self._run: Any = None

    def start(self, run: Run) -> None:
        folder, key = Path(os.environ.get("WANDB_DIR", run.path)), identity(run)
        if any((folder / "wandb").glob(f"*run-*-{key}")):
            time.sleep(1)  # folders are named by the second: a new one must not reuse a name
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(folder),
            name=name_of(run),
            id=key,
            resume="allow",
            config={**hyperparameters(run.settings), "environment": run.environment},
            settings={"console": "off"},
        )

    def record(self, record: Record) -> None:
        # On a server, a resumed run starts after the rounds that the server has.
        if record.t >= self._run.starting_step:
            self._run.log(scalars(record), step=record.t)

    def finish(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state == "done" else 1)
