"""What records contain besides metrics: bytes, and results on clients, calibration, fine-tuning."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from wima.core.checks import is_count, is_number

KEYS = ("clients", "calibration", "finetuned")  # of a record; each has an entry per model
QUANTILES = 21  # of a summary; see `wima.core.distribution`


class Extras(NamedTuple):
    """The newest entry of each kind, and the cumulative bytes."""

    newest: dict[str, tuple[int, dict[str, Any]]]  # key -> its last round, its entry then
    sent: array[float]  # bytes to and from clients up to round 1, 2, ..., as far as recorded

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of the next round."""
        t = record["t"]
        kept = (*KEYS, "privacy")
        self.newest.update({key: (t, record[key]) for key in kept if record.get(key)})
        if "bytes" in record and len(self.sent) == t - 1:
            now = record["bytes"]["down"] + record["bytes"]["up"]
            self.sent.append(now + (self.sent[-1] if self.sent else 0))

    def until(self, t: int | None) -> int | None:
        """The bytes of the first t rounds; None if they are not all recorded."""
        return int(self.sent[t - 1]) if t is not None and t <= len(self.sent) else None


def are_extras(line: dict[str, Any]) -> bool:
    """Whether the extras in a line are well-formed."""
    sent = line.get("bytes", {"down": 0, "up": 0})
    tuned = line.get("finetuned", {}).values()
    bins = [one for own in line.get("calibration", {}).values() for one in own]
    return (
        all(is_count(sent[way], 0) and is_number(sent[way]) for way in ("down", "up"))
        and all(map(_is_summary, line.get("clients", {}).values()))
        and all(_is_summary(own[stage]) for own in tuned for stage in ("before", "after"))
        and all(map(_is_bin, bins))
    )


def _is_summary(found: dict[str, Any]) -> bool:
    """See `wima.core.distribution.summary`."""
    numbers = [found["mean"], found["deviation"], found["worst"], *found["quantiles"]]
    counts = [found.get("gained", 0), found.get("lost", 0)]
    return (
        len(numbers) == 3 + QUANTILES
        and all(value is None or is_number(value) for value in numbers)
        and is_count(found["count"])
        and all(is_count(value, 0) and value <= found["count"] for value in counts)
    )


def _is_bin(found: list[Any]) -> bool:
    count, *rest = found
    fits = all(value is None or is_number(value) for value in rest) if count else not any(rest)
    return is_count(count, 0) and is_number(count) and len(rest) == 2 and fits
