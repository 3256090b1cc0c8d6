"""A run as users see it: records, curves, tables and final models, in memory or from its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from math import nan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wima.core.errors import UsageError, check, is_count, is_number, unknown
from wima.core.statistics import last_rounds
from wima.runs.own_code import OWN, label
from wima.runs.record import RECORDS, TIMES, Counts, Curves, as_line, checked, from_line, lines
from wima.runs.settings import Settings, make_settings, read_table
from wima.storage.files import check_file, digest, is_running, last_lines, read_text

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from torch import nn

    from wima.core.vector import Vector
    from wima.runs.summary import Summary
    from wima.simulation.simulate import Record
    from wima.simulation.task import Task

STATES = ("running", "done", "interrupted", "pruned", "diverged", "failed")
MALFORMED = OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
SHOWN = 6  # models in a repr
COUNTS = ("gained", "lost")  # not defined for the plain model


class Models(NamedTuple):
    """The final models of a run, and their task."""

    vectors: dict[str, Vector]
    task: Task


class Run:
    """A run: what `wima.run` and `wima.read_run` return.

    Whatever is in a folder is read on demand: there may be a million records.
    """

    def __init__(
        self,
        title: str,
        load: Callable[[], Models],
        *,
        records: Sequence[Record] | None = None,
        path: Path | None = None,
        settings: Settings | None = None,
        status: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        """load: called when the final models are needed.  Without records, `path` has them."""
        self.title, self._load = title, load
        self.path: Path = path  # type: ignore[assignment]  # None without a folder
        self._settings, self.status = settings, status or {}
        facts = {"identity": {}, "origin": {}, **(environment or {})}
        # The first two are for `runs/identity.py`, and not to be shown.
        self.identity, self.origin = facts.pop("identity"), facts.pop("origin")
        self.environment: Mapping[str, Any] = facts
        if records is not None:
            self.records = list(records)

    @property
    def settings(self) -> Settings:
        """The settings of a run with a folder."""
        if self._settings is None:
            raise UsageError("A run without a folder has no settings; use out=.")
        return self._settings

    # What happened, by round.

    @cached_property
    def records(self) -> list[Record]:
        """All rounds."""
        seconds = seconds_of(self.path)
        return [from_line(line, seconds.get(line["t"], nan)) for line in self.lines()]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The rounds as JSON."""
        if self.path is None:
            yield from map(as_line, self.records)
            return
        for number, line in enumerate(lines(self.path / RECORDS), 1):
            try:
                yield checked(json.loads(line))
            except MALFORMED as error:
                raise _damaged(self.path, f"in line {number}: {_reason(error)}") from None

    @property
    def t(self) -> int:
        """The number of completed rounds: that of the last record."""
        if self.path is None:
            return self.records[-1].t if self.records else 0
        return rounds_in(self.path)

    @cached_property
    def curves(self) -> Curves:
        """The contents of the records by round."""
        return Curves.of(self.lines())

    @property
    def models(self) -> list[str]:
        """The names of the models that were evaluated, "plain" first."""
        return list(self.curves.metrics)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return list(self.curves.metrics["plain"]) if self.curves.metrics else []

    @property
    def windows(self) -> dict[str, Counts]:
        """Model -> rounds and the number of averaged models, for averages whose window varies."""
        return self.curves.windows

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a model was evaluated, and the values of its metric."""
        return self.curves.curve(model, metric)

    @property
    def usual_metric(self) -> str:
        """Accuracy if there is one, else the first metric."""
        check(bool(self.metrics), "No model was evaluated; see eval_every.")
        return self.curves.leading

    def _metric(self, name: str | None) -> str:
        if name is not None and name not in self.metrics:
            raise unknown("metric", name, self.metrics)
        return name or self.usual_metric

    # The final models.

    @cached_property
    def _models(self) -> Models:
        return self._load()

    @property
    def vectors(self) -> dict[str, Vector]:
        """The final models by name, as vectors."""
        return self._models.vectors

    def model(self, name: str = "plain") -> nn.Module:
        """The final model of that name as a new module, in evaluation mode."""
        vectors, task = self._models
        if name not in vectors:
            raise unknown("model", name, vectors)
        if task.workspace is None:
            raise UsageError(
                f"The task was made of functions and has no module; use vectors[{name!r}] instead."
            )
        return task.workspace.module_at(vectors[name])

    # Tables and plots.

    def summary(self, metric: str | None = None) -> Summary:
        """Mean and standard deviation of each model over the last rounds, as in wima's tables."""
        return summarize(self, self._metric(metric))

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Plot the metric over the rounds, plain solid and averages dashed; returns the axes.

        ax: axes to draw into; automatic windows are then not shown.
        """
        import matplotlib.pyplot as plt

        from wima.runs.summary import draw, draw_run

        metric = self._metric(metric)
        if ax is None:
            figure = plt.figure(figsize=(8, 4.5), layout="constrained")
            return draw_run(self.curves, figure, self.title, metric)
        draw(self.curves, ax, None, self.title, metric)
        return ax

    def to_pandas(self) -> DataFrame:
        """One row for each evaluated round and model, with the metrics in columns.

        window: the number of averaged models, if any average chose it itself.  bytes: the total
        sent to and by clients so far, if recorded.
        """
        sent = dict(zip(*self.curves.sent, strict=True))
        rows = [
            {"t": r.t, "model": model, **metrics, "lr": r.lr, "seconds": r.seconds}
            | ({"window": r.windows.get(model)} if self.windows else {})
            | ({"bytes": int(sent[r.t])} if sent else {})
            for r in self.records
            for model, metrics in r.metrics.items()
        ]
        return _frame(rows, ["t", "model"], whole=("window",))

    def clients(self) -> DataFrame:
        """The distribution over clients, with one row for each evaluated round and model.

        Mean, standard deviation, mean of the worst tenth, the quantiles q0, q5, ... q100, the
        number of clients, and how many gained and lost compared with the plain model.
        """
        rows = [
            {"t": r.t, "model": model, **_columns(summary)}
            for r in self.records
            for model, summary in r.clients.items()
        ]
        return _frame(rows, ["t", "model"], whole=COUNTS)

    def finetuned(self) -> DataFrame:
        """The same before and after fine-tuning on each client, one row per model and stage."""
        rows = [
            {"t": r.t, "model": model, "stage": stage, **_columns(summary)}
            for r in self.records
            for model, stages in r.finetuned.items()
            for stage, summary in stages.items()
        ]
        return _frame(rows, ["t", "model", "stage"], whole=COUNTS)

    def calibration(self) -> DataFrame:
        """One row for each round, model and confidence bin: examples, confidence, accuracy."""
        rows = [
            {"t": r.t, "model": model, "bin": place}
            | dict(zip(("count", "confidence", "accuracy"), values, strict=True))
            for r in self.records
            for model, bins in r.calibration.items()
            for place, values in enumerate(bins)
        ]
        return _frame(rows, ["t", "model", "bin"])

    def _headline(self) -> str:
        return f"{self.title}, {self.t} rounds" + (f", in {self.path}" if self.path else "")

    def __repr__(self) -> str:
        if not self.metrics:
            return f"Run({self._headline()}; no model was evaluated)"
        from wima.core.measure import Measure

        rows = self.summary()
        measure = Measure(rows.metric)
        shown = [f"{row.model} {measure.number(row.mean)}" for row in rows[:SHOWN]]
        shown += ["..."] if len(rows) > SHOWN else []
        return f"Run({self._headline()};\n  {rows.title}: {', '.join(shown)})"

    def _repr_html_(self) -> str:
        table = self.summary()._repr_html_() if self.metrics else ""
        return f"<p>{escape(self._headline())}</p>{table}"


def rounds_in(path: Path) -> int:
    """The number of completed rounds in a run folder; only its last record is read."""
    try:
        return int(json.loads(next(last_lines(path / RECORDS), b'{"t": 0}'))["t"])
    except MALFORMED as error:
        raise _damaged(path, f"in its last line: {_reason(error)}") from None


def state_of(run: Run) -> str:
    """The state in the folder; "interrupted" if the process was killed."""
    state = str(run.status["state"])
    return "interrupted" if state == "running" and not is_running(run.path) else state


def is_intact(run: Run) -> bool:
    """Whether the records and models of a finished run are unchanged."""
    try:
        sums = dict(run.status.get("sums", {}))
        for name in sums:
            check_file(run.path / name)
        return all(digest(run.path / name) == expected for name, expected in sums.items())
    except MALFORMED:
        return False


def read_run(path: str | PathLike[str], task: Task | None = None, trust: bool = False) -> Run:
    """A run, complete or not, from its folder.

    task: needed to load models of runs that were started with Python objects; for other runs, it is
    built from their settings when needed.
    trust: import code that the settings name (`file.py:Thing`), even if the folder was made by
    another user or on another machine.
    """
    path = Path(path)
    for name in ("settings.toml", "environment.json", RECORDS, "status.json"):
        check((path / name).is_file(), f"{path} is not a run folder: it contains no {name}.")
    settings = make_settings(read_table(str(path / "settings.toml")))
    try:
        status, environment = (
            json.loads(read_text(path / f"{name}.json")) for name in ("status", "environment")
        )
        check(status["state"] in STATES and is_count(status["done"], 0), "status.json")
        check(
            isinstance(environment, dict) and isinstance(environment.get("identity", {}), dict),
            "environment.json",
        )
    except MALFORMED as error:
        raise UsageError(f"The run folder {path} is damaged: {_reason(error)}") from None
    names, cohort = (settings.algorithm.name, settings.data.name), settings.clients_per_round
    run = Run(
        title(*names, cohort, environment.get("clients", "all")),
        lambda: _final_models(run, task, trust),
        path=path,
        settings=settings,
        status=status,
        environment=environment,
    )
    return run


def seconds_of(path: Path) -> dict[int, float]:
    """Round -> seconds, from times.jsonl in a run folder."""
    file = path / TIMES
    try:
        times = json.loads(b"[" + b",".join(lines(file)) + b"]")  # three times as fast as by line
        if not all(is_number(line["seconds"]) for line in times):
            raise ValueError("seconds must be numbers")
        return {line["t"]: float(line["seconds"]) for line in times}
    except MALFORMED as error:
        raise UsageError(f"{file} is damaged: {_reason(error)}.") from None


def _final_models(run: Run, task: Task | None, trust: bool) -> Models:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from wima.core.vector import vector_of
    from wima.runs.build import build_task
    from wima.runs.identity import check_trusted

    folder, state = run.path / "models", state_of(run)
    check(folder.is_dir(), f"The run in {run.path} is {state}; it has no final models yet.")
    if task is None:
        if run.settings.data.name != OWN:  # else nothing is imported: a task is needed
            check_trusted(run, trust, how="trust=True")
        task = build_task(run.settings)
    vectors, files = {}, sorted(file.stem for file in folder.glob("*.safetensors"))
    for name in dict.fromkeys(["plain", *run.models, *files]):  # those not evaluated come last
        file = folder / f"{name}.safetensors"
        check_file(file)
        try:
            vectors[name] = vector_of(load_file(file), task.layout)
        except (*MALFORMED, SafetensorError, RuntimeError) as error:
            raise UsageError(f"{file} does not match the task: {error!s:.200}") from None
    return Models(vectors, task)


class Ending(NamedTuple):
    """The last rounds of a run, over which its metrics are averaged."""

    t: int  # rounds recorded
    last: int  # number of last rounds
    curves: Curves  # of the last rounds


def ending(run: Run) -> Ending:
    """The last rounds of a run, in any state, without reading the others."""
    t = last = 0
    late: list[dict[str, Any]] = []
    try:
        for record in _newest_first(run):
            if not late:
                t, last = record["t"], last_rounds(record["t"])
            if record["t"] <= t - last:
                break
            late.append(record)
        return Ending(t, last, Curves.of(reversed(late)))
    except MALFORMED as error:
        raise _damaged(run.path, f"near its end: {_reason(error)}") from None


def _newest_first(run: Run) -> Iterator[dict[str, Any]]:
    if run.path is None:
        return map(as_line, reversed(run.records))
    return (checked(json.loads(line)) for line in last_lines(run.path / RECORDS))


def summarize(run: Run, metric: str = "accuracy") -> Summary:
    """Mean and standard deviation of each model's metric over the run's last rounds."""
    from wima.runs.summary import Summary

    _, last, curves = ending(run)
    return Summary(curves.rows(last, metric), metric)


def title(algorithm: str, data: str, per_round: int, clients: object) -> str:
    """One line that says what was run, from names in settings."""
    on = "own data" if data == OWN else label(data)
    return f"{label(algorithm)} on {on}, {per_round} of {clients} clients per round"


def _damaged(path: Path, where: str) -> UsageError:
    return UsageError(f"{path}/{RECORDS} is damaged {where}. `wima resume {path}` repairs it.")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def _frame(rows: list[dict[str, Any]], columns: list[str], whole: Sequence[str] = ()) -> DataFrame:
    """A data frame.  columns: used if it is empty; whole: integer columns with missing values."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=None if rows else columns)
    return frame.astype({name: "Int64" for name in whole if name in frame})


def _columns(summary: Any) -> dict[str, float]:
    """A summary of clients as numbers by column."""
    from wima.core.statistics import QUANTILES

    levels = (f"q{100 * share:g}" for share in QUANTILES)
    quantiles = dict(zip(levels, summary["quantiles"], strict=True))
    return {n: v for n, v in summary.items() if n != "quantiles"} | quantiles
