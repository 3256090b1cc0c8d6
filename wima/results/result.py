"""The result of a run, in memory or read from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from wima.core.errors import UsageError, check, unknown
from wima.core.statistics import QUANTILES, last_rounds
from wima.core.vector import Vector
from wima.report.measure import Measure
from wima.report.summary import Summary, axes_for, draw, summary_of
from wima.runs.record import Counts, Curves, as_line
from wima.simulation.simulate import Record
from wima.simulation.task import Task

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]

SHOWN = 6  # models in a repr
COUNTS = ("gained", "lost")  # not defined for the plain model


class Models(NamedTuple):
    """The final models of a run, and their task."""

    vectors: dict[str, Vector]
    task: Task


class Result:
    """The records and final models of a run; `load` is called when the models are needed.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> result = wima.run(task, averagers=wima.WIMA(2), rounds=3, clients_per_round=2)
        >>> rounds, accuracies = result.curve("wima2", "accuracy")
        >>> rounds
        [1, 2, 3]
        >>> result.model("wima2")
        Linear(in_features=4, out_features=2, bias=True)
    """

    def __init__(
        self,
        records: Sequence[Record],
        load: Callable[[], Models],
        title: str,
        path: Path | None = None,
    ) -> None:
        self.records, self._load = list(records), load
        self.title, self.path = title, path  # path of the run folder, if any

    @cached_property
    def _models(self) -> Models:
        return self._load()

    @cached_property
    def _curves(self) -> Curves:
        return Curves.of(map(as_line, self.records))

    @property
    def vectors(self) -> dict[str, Vector]:
        """The final models by name, as vectors."""
        return self._models.vectors

    @property
    def models(self) -> list[str]:
        """The names of the models that were evaluated, "plain" first."""
        return list(self._curves.metrics)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return list(self._curves.metrics["plain"]) if self._curves.metrics else []

    @property
    def windows(self) -> dict[str, Counts]:
        """Model -> rounds and the number of averaged models, for averages whose window varies."""
        return self._curves.windows

    def curve(self, model: str, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a model was evaluated, and the values of its metric."""
        return self._curves.curve(model, metric)

    def model(self, name: str = "plain") -> nn.Module:
        """The final model of that name as a new module, in evaluation mode."""
        vectors, task = self._models
        if name not in vectors:
            raise unknown("model", name, vectors)
        check(
            task.workspace is not None,
            f"The task was made of functions and has no module; use vectors[{name!r}] instead.",
        )
        assert task.workspace is not None
        return task.workspace.module_at(vectors[name])

    def summary(self, metric: str | None = None) -> Summary:
        """Mean and standard deviation of each model over the last rounds, as in wima's tables."""
        last = last_rounds(self._end)
        late = (as_line(record) for record in self.records if record.t > self._end - last)
        return summary_of(Curves.of(late), last, self._metric(metric))

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Plot the metric over the rounds, plain solid and averages dashed; returns the axes.

        ax: axes to draw into; automatic windows are then not shown.
        """
        import matplotlib.pyplot as plt

        metric, strip = self._metric(metric), None
        if ax is None:
            figure = plt.figure(figsize=(8, 4.5), layout="constrained")
            ax, strip = axes_for(self, figure)
        draw(self, ax, strip, self.title, metric)
        return ax

    def to_pandas(self) -> DataFrame:
        """One row for each evaluated round and model, with the metrics in columns.

        window: the number of averaged models, if any average chose it itself.  bytes: the total
        sent to and by clients so far, if recorded.
        """
        sent = self._curves.extras
        known = bool(sent.sent)
        rows = [
            {"t": r.t, "model": model, **metrics, "lr": r.lr, "seconds": r.seconds}
            | ({"window": r.windows.get(model)} if self.windows else {})
            | ({"bytes": sent.until(r.t)} if known else {})
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
            {"t": r.t, "model": model, **_statistics(summary)}
            for r in self.records
            for model, summary in r.clients.items()
        ]
        return _frame(rows, ["t", "model"], whole=COUNTS)

    def finetuned(self) -> DataFrame:
        """The same before and after fine-tuning on each client, one row per model and stage."""
        rows = [
            {"t": r.t, "model": model, "stage": stage, **_statistics(summary)}
            for r in self.records
            for model, stages in r.finetuned.items()
            for stage, summary in stages.items()
        ]
        return _frame(rows, ["t", "model", "stage"], whole=COUNTS)

    def calibration(self) -> DataFrame:
        """One row for each round, model and confidence bin: examples, confidence, accuracy."""
        rows = [
            {"t": r.t, "model": model, "bin": place}
            | dict(zip(("count", "confidence", "accuracy"), found, strict=True))
            for r in self.records
            for model, bins in r.calibration.items()
            for place, found in enumerate(bins)
        ]
        return _frame(rows, ["t", "model", "bin"])

    @property
    def _end(self) -> int:
        return self.records[-1].t if self.records else 0

    @property
    def usual_metric(self) -> str:
        """Accuracy if there is one, else the first metric."""
        check(bool(self.metrics), "No model was evaluated; see eval_every.")
        return self._curves.leading

    def _metric(self, name: str | None) -> str:
        if name is not None and name not in self.metrics:
            raise unknown("metric", name, self.metrics)
        return name or self.usual_metric

    def _headline(self) -> str:
        return f"{self.title}, {self._end} rounds" + (f", in {self.path}" if self.path else "")

    def __repr__(self) -> str:
        if not self.metrics:
            return f"Result({self._headline()}; no model was evaluated)"
        rows = self.summary()
        measure = Measure(rows.metric)
        shown = [f"{row.model} {measure.number(row.mean)}" for row in rows[:SHOWN]]
        shown += ["..."] if len(rows) > SHOWN else []
        return f"Result({self._headline()};\n  {rows.title}: {', '.join(shown)})"

    def _repr_html_(self) -> str:
        table = self.summary()._repr_html_() if self.metrics else ""
        return f"<p>{escape(self._headline())}</p>{table}"


def _frame(rows: list[dict[str, Any]], columns: list[str], whole: Sequence[str] = ()) -> DataFrame:
    """A data frame.  columns: used if it is empty; whole: integer columns with missing values."""
    try:
        import pandas as pd
    except ImportError:
        reason = "Data frames need pandas: pip install 'wima[pandas]'."
        raise UsageError(reason) from None
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    return frame.astype({name: "Int64" for name in whole if name in frame})


def _statistics(summary: Mapping[str, Any]) -> dict[str, float]:
    """A summary of clients as numbers by column."""
    levels = (f"q{100 * share:g}" for share in QUANTILES)
    quantiles = dict(zip(levels, summary["quantiles"], strict=True))
    return {n: v for n, v in summary.items() if n != "quantiles"} | quantiles
