"""What records say besides metrics: bytes, and how models do on clients, calibrated, fine-tuned."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

KEYS = ("clients", "calibration", "finetuned")  # of a record; each has an entry per model


class Extras(NamedTuple):
    """The newest of each kind, and all bytes."""

    newest: dict[str, tuple[int, dict[str, Any]]]  # key -> its last round, and what that says
    sent: array[int]  # bytes to and from clients until round 1, 2, ..., while records say it

    def add(self, record: dict[str, Any]) -> None:
        """The record of the next round."""
        t = record["t"]
        self.newest.update({key: (t, record[key]) for key in KEYS if record.get(key)})
        if "bytes" in record and len(self.sent) == t - 1:
            now = record["bytes"]["down"] + record["bytes"]["up"]
            self.sent.append(now + (self.sent[-1] if self.sent else 0))

    def until(self, t: int | None) -> int | None:
        """The bytes of the first t rounds; None if one of them does not say."""
        return self.sent[t - 1] if t is not None and t <= len(self.sent) else None
