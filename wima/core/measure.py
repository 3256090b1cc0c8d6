"""What is measured, in which direction it is better, and how its numbers are written."""

from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any, NamedTuple, Self

from wima.core.errors import check

PLAIN = "plain"  # the model that is not averaged
MINUS = "\N{MINUS SIGN}"


def lower_is_better(metric: str, environments: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Whether lower values of a metric are better: as one of the runs says, else by its name.

    environments: those of the runs, whose `directions` may say "lower" or "higher".
    """
    for environment in environments:
        directions = environment.get("directions")
        stated = directions.get(metric) if isinstance(directions, Mapping) else None
        if stated in ("lower", "higher"):
            return bool(stated == "lower")
    return "loss" in metric or "error" in metric or metric == "ece"


class Measure(NamedTuple):
    """A metric of the records; an accuracy is shown in percent."""

    metric: str = "accuracy"
    last: int | None = None  # rounds in the mean; None: the sheet or run decides
    target: float | None = None  # a value of the metric, as recorded
    lower: bool | None = None  # whether lower is better; None: by its name

    def directed(self, environments: Iterable[Mapping[str, Any]]) -> Self:
        """The measure with the direction that these runs say."""
        return self._replace(lower=lower_is_better(self.metric, environments))

    @property
    def is_share(self) -> bool:
        return self.metric == "accuracy"

    @property
    def factor(self) -> int:
        """Shown value divided by recorded value."""
        return 100 if self.is_share else 1

    @property
    def digits(self) -> int:
        return 2 if self.is_share else 4

    @property
    def title(self) -> str:
        return f"test {self.metric}" + (", %" if self.is_share else "")

    @property
    def sign(self) -> int:
        """-1 if lower is better."""
        lower = lower_is_better(self.metric) if self.lower is None else self.lower
        return -1 if lower else 1

    def number(self, value: float, signed: bool = False) -> str:
        """A recorded value as text; empty for NaN."""
        if isnan(value):
            return ""
        text = f"{self.factor * value:{'+' if signed else ''}.{self.digits}f}"
        return text.replace("-", MINUS)

    def spread(self, mean: float, deviation: float) -> str:
        """A mean, followed by its deviation if there is one."""
        second = self.number(deviation)
        return self.number(mean) + (f" ± {second}" if second else "")

    def interval(self, gain: Any) -> str:
        """A gain with its interval; * if from a single run, † if significant after Holm.

        gain: has a `mean` with half the width of its interval, `half`, NaN if there is none;
        `basis`; and `marked`.
        """
        mean = self.number(gain.mean, signed=True)
        if isnan(gain.half):
            return mean
        ends = (gain.mean - gain.half, gain.mean + gain.half)
        low, high = (self.number(end, signed=True) for end in ends)
        marks = "*" * (gain.basis == "rounds") + "†" * gain.marked
        return f"{mean} [{low}, {high}]{marks}"


def check_measure(measure: Measure) -> None:
    """Raise if a value is impossible."""
    last, target = measure.last, measure.target
    check(last is None or last > 0, f"--last must be a positive number of rounds, got {last}.")
    if measure.is_share and target is not None:
        hint = "--target is an accuracy between 0 and 1, for example 0.8"
        check(0 < target <= 1, f"{hint}; got {target:g}.")


def megabytes(count: float) -> str:
    """Bytes in millions, with three digits; empty for NaN."""
    if isnan(count):
        return ""
    millions = count / 1e6
    return f"{millions:.{2 if millions < 10 else 1 if millions < 100 else 0}f}"
