"""The window average in Hugging Face's Trainer.

trainer = Trainer(...)
trainer.add_callback(WindowAveraging(trainer, window=100))
trainer.train()                                # each evaluation is followed by the average's
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from wima.core.errors import UsageError
from wima.loop.window_average import WindowAverage

FOLDER = "wima"  # in each checkpoint


class WindowAveraging(TrainerCallback):
    """Takes in the model after every step of the optimizer, and evaluates the average as well.

    Training is not changed.  Metrics of the average stand beside the plain model's: eval_loss and
    eval_wima_loss, which may also choose the best checkpoint.  `average` is the `WindowAverage`,
    from the beginning of `train` on.  save: past models are part of the Trainer's checkpoints, and
    restored when it resumes.  Other options are those of `WindowAverage`.
    """

    def __init__(
        self,
        trainer: Trainer,
        window: int | Literal["auto"] | list[int] = 100,
        *,
        save: bool = True,
        **options: Any,
    ) -> None:
        self._trainer, self._save = trainer, save
        self._options = {"window": window, **options}
        self._average: WindowAverage | None = None

    @property
    def average(self) -> WindowAverage:
        """The average; there is none before `train`."""
        if self._average is None:
            raise UsageError("There is no average yet: it begins with Trainer.train.")
        return self._average

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._average = WindowAverage(given["model"], **self._options)
        saved = _folder(args, state)
        if state.global_step and saved.is_dir():
            self._average.load(saved)

    def on_optimizer_step(  # not on_step_end, which comes after gradients are zeroed
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.average.update()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Evaluate the average on the same data; its metrics are added to the others."""
        if self._average is None:
            return
        metrics: dict[str, float] = given["metrics"]
        ending = "_samples_per_second"  # the Trainer's own, with its prefix
        prefix = next(key.removesuffix(ending) for key in metrics if key.endswith(ending))
        with self._average.applied():
            done = self._trainer.evaluation_loop(
                given["eval_dataloader"],
                "Evaluation of the average",
                prediction_loss_only=True if self._trainer.compute_metrics is None else None,
                metric_key_prefix=f"{prefix}_wima",
            )
        found = dict(done.metrics or {})
        self._trainer.log(found)
        metrics |= found

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._save and state.is_world_process_zero:
            self.average.save(_folder(args, state), overwrite=True)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / FOLDER
