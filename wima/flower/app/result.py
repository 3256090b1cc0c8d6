"""A finished run as a Flower result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from safetensors.torch import load_file

from wima.flower.app.records import to_arrays
from wima.runs.folder import Run

SERVED = "plain"
METRIC = "accuracy"  # the metric of the records' per-client results; every task in settings has it


def as_result(run: Run) -> Result:
    """The metrics and `models` of the run, by name; `arrays` is the plain model, named in `served`.

    `clients` is the same as for an averaged strategy: by round, model and metric.
    """
    files = sorted((run.path / "models").glob("*.safetensors"))
    models = {file.stem: to_arrays(load_file(file)) for file in files}
    result = Result(arrays=models[SERVED])
    clients = {
        record["t"]: {model: {METRIC: found} for model, found in record["clients"].items()}
        for record in list(run.lines())
        if "clients" in record
    }
    vars(result).update(models=models, served=SERVED, clients=clients)
    for record in list(run.lines()):
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
