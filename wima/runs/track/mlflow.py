"""MLflow."""

from __future__ import annotations

import os
import time
from typing import Any

from wima.runs.folder import Run
from wima.runs.track.base import hyperparameters, identity, name_of, needed, scalars
from wima.simulation.simulate import Record

EXPERIMENT = "wima"  # unless MLFLOW_EXPERIMENT_NAME is set
PACKAGES = "mlflow-skinny sqlalchemy alembic"  # skinny lacks what its SQLite store needs
TAG = "wima.identity"  # identifies a run when it is resumed
WAIT, MANY = 5.0, 500  # seconds and numbers to buffer at most, since writing is slow
STATUS = {"done": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}  # else FAILED


class MLflow:
    """MLflow, configured by its variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ..."""

    def __init__(self) -> None:
        self._mlflow = needed("mlflow", "mlflow", PACKAGES)
        self._entities = needed("mlflow", "mlflow.entities", PACKAGES)
        self._client: Any = None
        self._run_id, self._done = "", 0
        self._waiting: list[Any] = []
        self._written = 0.0

    def start(self, run: Run) -> None:
        self._client = self._mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._mlflow.set_experiment(name).experiment_id
        known = f"tags.`{TAG}` = '{identity(run)}'"
        found = self._client.search_runs([experiment], known, max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            steps = [m.step for m in self._client.get_metric_history(self._run_id, "lr")]
            self._done = max(steps, default=0)
        else:
            self._run_id = self._create(run, experiment)
        self._written = time.monotonic()

    def _create(self, run: Run, experiment: str) -> str:
        facts = {f"environment.{name}": str(value) for name, value in run.environment.items()}
        tags = {TAG: identity(run), **facts}
        made = self._client.create_run(experiment, tags=tags, run_name=name_of(run))
        settings = hyperparameters(run.settings).items()
        parameters = [self._entities.Param(name, str(value)) for name, value in settings]
        self._client.log_batch(made.info.run_id, params=parameters)
        return str(made.info.run_id)

    def record(self, record: Record) -> None:
        if record.t <= self._done:
            return
        now = int(1000 * time.time())
        self._waiting += [
            self._entities.Metric(name, value, now, record.t)
            for name, value in scalars(record).items()
        ]
        if len(self._waiting) >= MANY or time.monotonic() - self._written >= WAIT:
            self._write()

    def _write(self) -> None:
        for begin in range(0, len(self._waiting), MANY):
            self._client.log_batch(self._run_id, self._waiting[begin : begin + MANY])
        self._waiting, self._written = [], time.monotonic()

    def finish(self, state: str) -> None:
        self._write()
        self._client.set_tag(self._run_id, "state", state)
        self._client.set_terminated(self._run_id, STATUS.get(state, "FAILED"))
