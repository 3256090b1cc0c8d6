"""The distribution over clients of the metrics that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wima.core.checks import is_number
from wima.core.statistics import summary
from wima.flower.averages.models import log


def summaries(
    t: int, answers: Sequence[Mapping[str, Any]], lower_is_better: Callable[[str], bool]
) -> dict[str, dict[str, Any]]:
    """Metric -> the `summary` of its finite values over the clients of round t.

    Never raises because of what clients sent: values that are not numbers are left out.
    """
    found = {}
    for name in dict.fromkeys(n for answer in answers for n, v in answer.items() if _counts(v)):
        values = [float(answer[name]) for answer in answers if is_number(answer.get(name))]
        if len(values) < len(answers):
            log.warning(
                "Round %s: %s of %s clients returned no finite number as %r; its summary leaves "
                "them out.",
                *(t, len(answers) - len(values), len(answers), name),
            )
        if values:
            found[name] = summary(values)
        if values and lower_is_better(name):
            found[name]["worst"] = -summary([-value for value in values])["worst"]
    return found


def _counts(value: Any) -> bool:
    """Whether the value is a number, including NaN; lists, strings and booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
