"""A finished run as Flower tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from safetensors.torch import load_file

from wima.flower.app.records import to_arrays
from wima.runs.folder import Run

SERVED = "plain"


def as_result(run: Run) -> Result:
    """The metrics and `models` of the run, by name; `arrays` is the plain one, as `served` says."""
    files = sorted((run.path / "models").glob("*.safetensors"))
    models = {file.stem: to_arrays(load_file(file)) for file in files}
    result = Result(arrays=models[SERVED])
    vars(result).update(models=models, served=SERVED)
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


def as_text(result: Result, folder: Path) -> Iterator[str]:
    """The last metrics of every model, and where the models are."""
    for t, metrics in list(result.evaluate_metrics_serverapp.items())[-1:]:
        found = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        yield f"Round {t}: {found}"
    names = ", ".join(f"{name}.safetensors" for name in vars(result)["models"])
    yield f"Models in {folder / 'models'}: {names}"
