"""The window average in Lightning: `Trainer(callbacks=[WindowAveraging(window=100)])`."""

from contextlib import ExitStack
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from wima.core.errors import UsageError
from wima.training.window_average import WindowAverage


class WindowAveraging(Callback):
    """Adds the model to the average after every optimizer step; validation uses the average.

    Training is not changed.  `average` is the `WindowAverage`, available once `fit` has started.
    validate=False: validate the plain model.  The state, with all past models, is part of
    Lightning's checkpoints.  Other options are those of `WindowAverage`.
    """

    def __init__(
        self,
        window: int | Literal["auto"] | list[int] = 100,
        *,
        validate: bool = True,
        **options: Any,
    ) -> None:
        self._options = {"window": window, **options}
        self._validate = validate
        self._average: WindowAverage | None = None
        self._restored: dict[str, Any] = {}
        self._step = 0
        self._applied = ExitStack()

    @property
    def average(self) -> WindowAverage:
        """The average; raises before `fit`."""
        if self._average is None:
            raise UsageError("There is no average yet: Trainer.fit creates it.")
        return self._average

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._average is None or self._average.model is not pl_module:
            self._average = WindowAverage(pl_module, **self._options)
        if self._restored:
            self._average.load_state_dict(self._restored)
            self._restored = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step  # the checkpoint's, if there was one

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step != self._step:  # not while gradients are accumulated
            self._step = trainer.global_step
            self.average.update()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validate and self._average is not None and not trainer.sanity_checking:
            self._applied.enter_context(self._average.applied())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._applied.close()

    def on_exception(self, *_: Any) -> None:
        self._applied.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._average is None else self._average.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict
