"""The window average in Hugging Face's Trainer.

trainer = Trainer(...)
trainer.add_callback(WindowAveraging(trainer, window=100))
trainer.train()                                # each evaluation is followed by one of the average
"""

from pathlib import Path
from typing import Any, Literal

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from wima.core.errors import UsageError
from wima.training.window_average import WindowAverage

FOLDER = "wima"  # inside each checkpoint


class WindowAveraging(TrainerCallback):
    """Adds the model to the average after every optimizer step, and also evaluates the average.

    Training is not changed.  Metrics of the average are reported beside the plain model's, as
    eval_wima_loss beside eval_loss; they can also select the best checkpoint.  `average` is the
    `WindowAverage`, available once `train` has started.  save: past models are part of the
    Trainer's checkpoints, and are restored when it resumes.  Other options are those of
    `WindowAverage`.
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
        """The average; raises before `train`."""
        if self._average is None:
            raise UsageError("There is no average yet: Trainer.train creates it.")
        return self._average

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._average = WindowAverage(given["model"], **self._options)
        saved = _folder(args, state)
        if state.global_step and saved.is_dir():
            self._average.load(saved)

    def on_optimizer_step(  # not on_step_end, which runs after gradients are zeroed
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.average.update()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Evaluate the average on the same data, and add its metrics to the others."""
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
