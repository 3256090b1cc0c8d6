"""The window average in pfl-research: a callback that can be saved and restored."""

from pathlib import Path
from typing import Any, Literal

from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Saveable
from pfl.exception import CheckpointNotFoundError
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from wima.training.window_average import MANIFEST, WindowAverage

FOLDER = "wima"  # inside the folder that pfl chooses


class WindowAveraging(TrainingProcessCallback, Saveable):  # type: ignore[misc]
    """Adds the central model to the average after every iteration; training is not changed.

    evaluation: a pfl callback, such as CentralEvaluationCallback, which is called with the averaged
    weights in the model; give it its own `format_fn`.  To restore the average after a crash, list
    this callback in the `saveables` of RestoreTrainingCallback, which must come after it in the
    list of callbacks.  Other options are those of `WindowAverage`; the average is `average`.
    """

    def __init__(
        self,
        model: PyTorchModel,
        window: int | Literal["auto"] | list[int] = 100,
        *,
        evaluation: TrainingProcessCallback | None = None,
        **options: Any,
    ) -> None:
        self.average = WindowAverage(model.pytorch_model, window, **options)
        self._evaluation = evaluation

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.average.update()
        if self._evaluation is None:
            return False, Metrics()
        with self.average.applied():
            stop, metrics = self._evaluation.after_central_iteration(
                aggregate_metrics, model, central_iteration=central_iteration
            )
        return stop, metrics

    def save(self, dir_path: str) -> None:
        self.average.save(Path(dir_path) / FOLDER, overwrite=True)

    def load(self, dir_path: str) -> None:
        folder = Path(dir_path) / FOLDER
        if not (folder / MANIFEST).is_file():
            raise CheckpointNotFoundError(str(folder))
        self.average.load(folder)
