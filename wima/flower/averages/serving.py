"""Which model is served: the plain one, its average, or the better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wima.core.checks import check_count, check_one_of, check_switch
from wima.core.errors import UsageError

Serve = Literal["plain", "average", "better"]


@dataclass
class Serving:
    """serve: "plain" serves the plain model, "average" the average from the first round on.

    "better" starts with the plain model, and switches to the other model once that has been better
    in `patience` evaluations in a row.  A tie counts for the model that is served.
    """

    serve: Serve = "plain"
    patience: int = 5
    metric: str = "accuracy"
    lower_is_better: bool = False
    average: bool = False  # whether the average is currently served
    streak: int = 0  # evaluations in a row in which the other model was better

    def __post_init__(self) -> None:
        check_one_of("serve", self.serve, ("plain", "average", "better"))
        check_count("patience", self.patience)
        check_switch("lower_is_better", self.lower_is_better)
        self.average = self.serve == "average"

    def prefers_less(self, metric: str) -> bool:
        """Whether lower values of a metric are better, as for losses."""
        return metric.lower().endswith("loss") or (self.lower_is_better and metric == self.metric)

    def judge(self, plain: Mapping[str, Any], average: Mapping[str, Any]) -> None:
        """Update the choice with an evaluation of both models."""
        if self.serve != "better":
            return
        lead = self._value(average) - self._value(plain)
        if self.lower_is_better:
            lead = -lead
        other_leads = lead < 0 if self.average else lead > 0
        self.streak = self.streak + 1 if other_leads else 0
        if self.streak >= self.patience:
            self.average, self.streak = not self.average, 0

    def _value(self, metrics: Mapping[str, Any]) -> float:
        value = metrics.get(self.metric)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(
                f"serve='better' compares {self.metric!r}, which must be a number among the "
                f"metrics of the server's evaluation; got {', '.join(metrics) or 'none'}. "
                "Choose another metric: averaged(..., metric='loss', lower_is_better=True)."
            )
        return float(value)
