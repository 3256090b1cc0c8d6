"""Trackers: services that record runs besides their folders, while they run or afterwards.

A tracker is a class with the three methods of `Tracker`.  Three are registered; the setting
`trackers` also takes a user's own, as `file.py:Thing` or `module:Thing`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any, Protocol

from wima.core.errors import RunError, UsageError, check
from wima.core.text import echo
from wima.runs.own_code import Kind, check_call, find
from wima.runs.run import Run, read_run
from wima.runs.settings import Settings
from wima.simulation.simulate import Record
from wima.storage.files import is_running


class Tracker(Protocol):
    """Records one run in a service; made anew for each run, without arguments.

    After `start`, it receives all rounds of the run from the first, also when a run is resumed:
    those already in its folder, then the new ones.  A tracker skips the rounds that it has.
    An exception in any of the three methods is reported, and ends the tracker but not the run.
    """

    def start(self, run: Run) -> None:
        """Start recording, or resume an earlier recording of the run."""

    def record(self, record: Record) -> None:
        """Record a round."""

    def finish(self, state: str) -> None:
        """The run ended: done, interrupted, pruned, diverged or failed.  The last call."""


PACKAGES = {  # mlflow-skinny lacks what its SQLite store needs
    "mlflow": "mlflow-skinny sqlalchemy alembic",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}


def needed(tracker: str, module: str) -> Any:
    """Import a module; if that fails, the error says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"The tracker {tracker} needs a package that cannot be imported ({error}). "
            f"Install it with `pip install {PACKAGES[tracker]}`, or remove {tracker} from "
            "`trackers`."
        ) from None


def name_of(run: Run) -> str:
    """The name of its folder."""
    return run.path.resolve().name


def identity(run: Run) -> str:
    """A unique key of the run, the same whenever it is tracked."""
    origin = [name_of(run), run.settings.run_id, run.environment]
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]


def hyperparameters(settings: Settings) -> dict[str, str | float]:
    """All settings that are set, as numbers and strings; choices as on the command line."""
    values = dict[str, str | float]()
    for name, value in settings:
        if isinstance(value, list):
            values[name] = ",".join(map(str, value))
        elif value is not None:
            values[name] = value if isinstance(value, int | float) else str(value)
    return values


def scalars(record: Record) -> dict[str, float]:
    """A round's numbers: `accuracy/plain`, `accuracy/wima50`, `loss/plain`, ..., `seconds`, `lr`.

    If clients were evaluated, also `clients-mean/plain`, `clients-worst/plain`, ...  Every round
    has `lr`, which comes last: once it is recorded, the round is complete.
    """
    metrics = {
        f"{metric}/{model}": value
        for model, values in record.metrics.items()
        for metric, value in values.items()
    }
    clients = {
        f"clients-{name}/{model}": values[name]
        for model, values in record.clients.items()
        for name in ("mean", "worst")
    }
    seconds = {} if isnan(record.seconds) else {"seconds": record.seconds}
    return {**metrics, **clients, **seconds, "lr": record.lr}


EVENTS = "tensorboard"  # in the run folder
FLUSH = 10  # seconds until rounds are on disk


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self) -> None:
        self._writers = needed("tensorboard", "torch.utils.tensorboard")
        self._summaries = needed("tensorboard", "torch.utils.tensorboard.summary")
        self._writer: Any = None
        self._end: Any = None  # the summary that marks the run as finished
        self._done = 0  # rounds in earlier files

    def start(self, run: Run) -> None:
        folder = run.path / EVENTS
        new = not folder.exists()
        self._done = 0 if new else min(_rounds_in(folder), run.t)
        # Readers drop rounds >= `purge_step` from earlier files.
        purge = None if new else self._done + 1
        _wait_for_a_later_name(folder)
        self._writer = self._writers.SummaryWriter(str(folder), purge_step=purge, flush_secs=FLUSH)
        # The first summary would list the metrics; without it, TensorBoard uses all scalars.
        _, begin, self._end = self._summaries.hparams(hyperparameters(run.settings), {})
        self._writer.file_writer.add_summary(begin)
        if new:
            lines = [f"    {name}: {value}" for name, value in run.environment.items()]
            self._writer.add_text("environment", "\n".join(lines), 0)

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
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = needed("tensorboard", module)
    events = reader.EventAccumulator(str(folder), {reader.SCALARS: 0})  # 0: keep all
    events.Reload()
    rounds = events.Scalars("lr") if "lr" in events.Tags()["scalars"] else []
    return int(rounds[-1].step) if rounds else 0


EXPERIMENT = "wima"  # unless MLFLOW_EXPERIMENT_NAME is set
TAG = "wima.identity"  # identifies a run when it is resumed
WAIT, MANY = 5.0, 500  # seconds and numbers to buffer at most, since writing is slow
STATUS = {"done": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}  # else FAILED


class MLflow:
    """MLflow, configured by its variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ..."""

    def __init__(self) -> None:
        self._mlflow = needed("mlflow", "mlflow")
        self._entities = needed("mlflow", "mlflow.entities")
        self._client: Any = None
        self._run_id, self._done = "", 0
        self._waiting: list[Any] = []
        self._written = 0.0

    def start(self, run: Run) -> None:
        self._client = self._mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._mlflow.set_experiment(name).experiment_id
        query = f"tags.`{TAG}` = '{identity(run)}'"
        earlier = self._client.search_runs([experiment], query, max_results=1)
        if earlier:
            self._run_id = earlier[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            steps = [m.step for m in self._client.get_metric_history(self._run_id, "lr")]
            self._done = max(steps, default=0)
        else:
            self._run_id = self._create(run, experiment)
        self._written = time.monotonic()

    def _create(self, run: Run, experiment: str) -> str:
        environment = {f"environment.{name}": str(v) for name, v in run.environment.items()}
        tags = {TAG: identity(run), **environment}
        run_id = self._client.create_run(experiment, tags=tags, run_name=name_of(run)).info.run_id
        settings = hyperparameters(run.settings).items()
        parameters = [self._entities.Param(name, str(value)) for name, value in settings]
        self._client.log_batch(run_id, params=parameters)
        return str(run_id)

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


PROJECT = "wima"  # unless WANDB_PROJECT is set


class WandB:
    """Weights & Biases, configured by its variables: WANDB_MODE, WANDB_PROJECT, WANDB_DIR, ..."""

    def __init__(self) -> None:
        self._wandb = needed("wandb", "wandb")
        self._run: Any = None

    def start(self, run: Run) -> None:
        folder, key = Path(os.environ.get("WANDB_DIR", run.path)), identity(run)
        if any((folder / "wandb").glob(f"*run-*-{key}")):
            time.sleep(1)  # folders are named by the second: a new one must not reuse a name
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(folder),
            name=name_of(run),
            id=key,
            resume="allow",
            config={**hyperparameters(run.settings), "environment": run.environment},
            settings={"console": "off"},
        )

    def record(self, record: Record) -> None:
        # On a server, a resumed run starts after the rounds that the server has.
        if record.t >= self._run.starting_step:
            self._run.log(scalars(record), step=record.t)

    def finish(self, state: str) -> None:
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state == "done" else 1)


BY_NAME: dict[str, type[Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}


class Trackers:
    """The trackers of a run.  If one fails, it is reported once and disabled; the run continues."""

    def __init__(self, names: Sequence[str]) -> None:
        self._trackers = make_trackers(names)
        self._live: dict[str, Tracker] = {}  # started and not failed

    def start(self, path: Path) -> None:
        """Send the run in a folder with the rounds that it already has."""
        if self._trackers:
            run = read_run(path)
            self._live = _notify(self._trackers, lambda tracker: _begin(tracker, run))

    def record(self, record: Record) -> None:
        """Send a round."""
        self._live = _notify(self._live, lambda tracker: tracker.record(record))

    def finish(self, state: str) -> None:
        """Send how the run ended; Ctrl-C stops waiting for that."""
        try:
            self._live = _notify(self._live, lambda tracker: tracker.finish(state))
        except KeyboardInterrupt:
            text = "trackers were interrupted before they had written everything."
            echo(f"Warning: {text}", sys.stderr)


def _notify(trackers: dict[str, Tracker], send: Callable[[Tracker], None]) -> dict[str, Tracker]:
    """Call `send` for each tracker; returns those that did not fail."""
    left = {}
    for name, tracker in trackers.items():
        try:
            send(tracker)
            left[name] = tracker
        except Exception as error:
            text = f"the tracker {name} failed and is disabled for this run. {_reason(error)}"
            echo(f"Warning: {text}", sys.stderr)
    return left


def make_trackers(names: Sequence[str]) -> dict[str, Tracker]:
    """Trackers by name; raises `UsageError` for unknown names and missing packages."""
    words = "a class with methods start, record and finish"
    known = Kind("tracker", BY_NAME, words, methods=("start", "record", "finish"))
    kinds = {name: find(known, name) for name in names}
    for name, kind in kinds.items():
        check_call(f"tracker {name!r}", kind)
    return {name: kind() for name, kind in kinds.items()}


def export(paths: Sequence[Path], names: Sequence[str]) -> Iterator[str]:
    """Send run folders to trackers; yields a line per run, then raises any errors."""
    make_trackers(names)  # refuses wrong names before anything is written
    errors: list[Exception] = []
    for path in paths:
        try:
            yield _export(path, names)
        except (UsageError, RunError) as error:
            errors.append(error)
    if errors:
        kind = UsageError if isinstance(errors[0], UsageError) else RunError
        raise kind("\n".join(map(str, errors)))


def _export(path: Path, names: Sequence[str]) -> str:
    run = read_run(path)
    check(not is_running(path), f"{path} is still running; wait until it ends, or interrupt it.")
    state = run.status["state"]
    for name, tracker in make_trackers(names).items():
        try:
            _begin(tracker, run)
            tracker.finish("interrupted" if state == "running" else state)
        except UsageError:
            raise
        except Exception as error:
            raise RunError(f"{name} could not record {path}. {_reason(error)}") from error
    return f"{path}: {run.t} rounds are in {', '.join(names)}."


def _begin(tracker: Tracker, run: Run) -> None:
    tracker.start(run)
    for record in run.records:
        tracker.record(record)


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no reason given'}"
