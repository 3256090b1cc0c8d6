"""A finished run as Flower tells it."""

from __future__ import annotations

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from safetensors.torch import load_file

from wima.flower.app.records import to_arrays
from wima.runs.folder import Run


def as_result(run: Run) -> Result:
    """The plain model, and the metrics of all models."""
    result = Result(arrays=to_arrays(load_file(run.path / "models" / "plain.safetensors")))
    for record in run.records:
        metrics = {
            f"{model}/{name}": value
            for model, values in record["metrics"].items()
            for name, value in values.items()
            if value is not None
        }
        if metrics:
            result.evaluate_metrics_serverapp[record["t"]] = MetricRecord(metrics)
    return result
