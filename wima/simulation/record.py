"""What is recorded of a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wima.task.evaluation import Metrics

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Record(NamedTuple):
    """One round as it happened; its metrics are those of the models after t rounds."""

    t: int  # rounds done
    cohort: list[int]
    lr: float
    metrics: dict[str, Metrics]  # name of the model -> metric -> value; empty if not evaluated
    seconds: float
    dropped: tuple[int, ...] = ()  # clients of the cohort that never answered
    excluded: tuple[int, ...] = ()  # clients that sent what is not finite, see `Faults`
    windows: Mapping[str, int] = NOTHING  # models in averages whose window varies
    privacy: Mapping[str, float] = NOTHING  # epsilon so far, and the next clip
    bytes: Mapping[str, int] = NOTHING  # sent down to the clients of the round, and up by them
    clients: Mapping[str, Any] = NOTHING  # model -> its metric over clients, see `summary`
    calibration: Mapping[str, Any] = NOTHING  # model -> bins of confidence, see `reliability`
    finetuned: Mapping[str, Any] = NOTHING  # model -> clients before and after fine-tuning
