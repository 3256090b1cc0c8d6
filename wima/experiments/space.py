"""The space that `wima tune` searches: a range for each setting."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from wima.core.checks import is_number
from wima.core.errors import UsageError, check
from wima.runs.settings import parse_override

PATTERN = re.compile(r"(?P<key>[^=]+)=(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")
DIGITS = 3  # significant digits of proposed numbers; more would make no difference
Point: TypeAlias = dict[str, float]  # key -> value


class Range(NamedTuple):
    """The values of a setting; integers if both ends are."""

    key: str
    low: float
    high: float
    log: bool

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: float) -> float:
        """The value rounded to a few digits, within the range."""
        short = value if self.is_whole else float(f"{value:.{DIGITS}g}")
        return min(max(short, self.low), self.high)


def parse_space(texts: list[str]) -> list[Range]:
    """Each string is `key=low..high` or `key=low..high:log`."""
    ranges = [_parse(text) for text in texts]
    keys = [r.key for r in ranges]
    check(len(set(keys)) == len(keys), f"Expected one --space per key, got {', '.join(keys)}.")
    return ranges


def _parse(text: str) -> Range:
    expected = f"Expected --space key=low..high or key=low..high:log, got {text!r}"
    found = PATTERN.fullmatch(text)
    if found is None:
        raise UsageError(f"{expected}.")
    low, high = (parse_override(f"end={found[end]}")[1] for end in ("low", "high"))
    check(is_number(low) and is_number(high), f"{expected}: its ends must be numbers.")
    check(low < high, f"{expected}: {low} is not less than {high}.")
    log = found["log"] is not None
    check(low > 0 or not log, f"{expected}: on a log scale, both ends must be positive.")
    return Range(found["key"], low, high, log)


def parse_point(row: str) -> Point:
    """The point of a trial, from its row in a sheet: `key=value, key=value`."""
    return dict(parse_override(text) for text in row.split(", "))
