"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wima.runs import Run
from wima.simulation import Record
from wima.trackers.base import hyperparameters, identity, needed, scalars

FOLDER = "tensorboard"  # in the run folder
FLUSH = 10  # seconds after which rounds are on the disk


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        self._torch = needed("tensorboard", "torch.utils.tensorboard", "tensorboard")
        self._hparams = needed("tensorboard", "tensorboard.plugins.hparams.summary", "tensorboard")
        self._states = needed("tensorboard", "tensorboard.plugins.hparams.api_pb2", "tensorboard")
        self._writer: Any = None
        self._done = 0

    def start(self, run: Run) -> None:
        folder = run.path / FOLDER
        fresh = not folder.exists()
        self._done = 0 if fresh else min(_rounds_in(folder), len(run.records))
        # Readers forget the rounds from `purge_step` on that earlier files have.
        after = None if fresh else self._done + 1
        writer = self._torch.SummaryWriter(str(folder), purge_step=after, flush_secs=FLUSH)
        self._writer = writer
        settings = hyperparameters(run.settings)
        writer.file_writer.add_summary(
            self._hparams.session_start_pb(settings, group_name=identity(run))
        )
        if fresh:
            facts = "\n".join(f"    {name}: {value}" for name, value in run.environment.items())
            writer.add_text("environment", facts, 0)

    def record(self, record: Record) -> None:
        if record.t <= self._done:
            return
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.t)

    def finish(self, state: str) -> None:
        ended = "STATUS_SUCCESS" if state == "done" else "STATUS_FAILURE"
        status = self._states.Status.Value(ended)
        self._writer.file_writer.add_summary(self._hparams.session_end_pb(status))
        self._writer.close()


def _rounds_in(folder: Path) -> int:
    """How many rounds the event files in a folder have whole."""
    reader = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = needed("tensorboard", reader, "tensorboard")
    events = accumulator.EventAccumulator(str(folder), {accumulator.SCALARS: 1})
    events.Reload()
    rounds = events.Scalars("lr") if "lr" in events.Tags()["scalars"] else []
    return int(rounds[-1].step) if rounds else 0
