"""What is measured, over which rounds, and how its numbers are written."""

from __future__ import annotations

from math import isnan
from typing import NamedTuple

from wima.report.statistics import Interval

MINUS = "\N{MINUS SIGN}"


def megabytes(count: float) -> str:
    """Bytes in millions, with three digits; empty for NaN."""
    millions = count / 1e6
    return (
        "" if isnan(count) else f"{millions:.{2 if millions < 10 else 1 if millions < 100 else 0}f}"
    )


class Measure(NamedTuple):
    """A metric of the records; an accuracy is shown in percent."""

    metric: str = "accuracy"
    last: int | None = None  # rounds in the mean; None: the sheet or run decides
    target: float | None = None  # a value of the metric, as recorded

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
        falls = "loss" in self.metric or "error" in self.metric or self.metric == "ece"
        return -1 if falls else 1

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

    def interval(self, gain: Interval) -> str:
        """A gain with its interval; * if from a single run, † if significant after Holm."""
        mean = self.number(gain.mean, signed=True)
        if isnan(gain.half):
            return mean
        ends = (gain.mean - gain.half, gain.mean + gain.half)
        low, high = (self.number(end, signed=True) for end in ends)
        marks = "*" * (gain.basis == "rounds") + "†" * gain.marked
        return f"{mean} [{low}, {high}]{marks}"
