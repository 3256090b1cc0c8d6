"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wima.runs.folder import Run
from wima.runs.track.base import hyperparameters, needed, scalars
from wima.simulation.simulate import Record

FOLDER = "tensorboard"  # in the run folder
FLUSH = 10  # seconds until rounds are on disk


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        self._writers = _module("torch.utils.tensorboard")
        self._summaries = _module("torch.utils.tensorboard.summary")
        self._writer: Any = None
        self._end: Any = None  # the summary that marks the run as finished
        self._done = 0  # rounds in earlier files

    def start(self, run: Run) -> None:
        folder = run.path / FOLDER
        fresh = not folder.exists()
        self._done = 0 if fresh else min(_rounds_in(folder), run.t)
        # Readers drop rounds >= `purge_step` from earlier files.
        purge = None if fresh else self._done + 1
        _wait_for_a_later_name(folder)
        self._writer = self._writers.SummaryWriter(str(folder), purge_step=purge, flush_secs=FLUSH)
        # The first summary would list the metrics; without it, TensorBoard uses all scalars.
        _, begin, self._end = self._summaries.hparams(hyperparameters(run.settings), {})
        self._writer.file_writer.add_summary(begin)
        if fresh:
            facts = [f"    {name}: {value}" for name, value in run.environment.items()]
            self._writer.add_text("environment", "\n".join(facts), 0)

    def record(self, record: Record) -> None:
        if record.t > self._done:
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record.t)

    def finish(self, state: str) -> None:
        if state == "done":
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()


def _wait_for_a_later_name(folder: Path) -> None:
    """Readers sort files by the second in their names, so a new file needs a later one."""
    seconds = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    newest = max((int(second) for second in seconds if second.isdigit()), default=0)
    while newest - 5 < time.time() < newest + 1:
        time.sleep(0.05)


def _rounds_in(folder: Path) -> int:
    """The number of complete rounds in the event files of a folder."""
    reader = _module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), {reader.SCALARS: 0})  # 0: keep all
    events.Reload()
    rounds = events.Scalars("lr") if "lr" in events.Tags()["scalars"] else []
    return int(rounds[-1].step) if rounds else 0


def _module(name: str) -> Any:
    return needed("tensorboard", name, "tensorboard")
