"""The record of a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wima.task.evaluation import Metrics

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Record(NamedTuple):
    """One round; its metrics are those of the models after t rounds.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> *_, last = wima.simulate(task, rounds=2, clients_per_round=2, lr=0.5)
        >>> last.t, last.cohort, last.lr, sorted(last.metrics["plain"])
        (2, [0, 1], 0.5, ['accuracy', 'loss'])
    """

    t: int  # completed rounds
    cohort: list[int]
    lr: float
    metrics: dict[str, Metrics]  # name of the model -> metric -> value; empty if not evaluated
    seconds: float
    dropped: tuple[int, ...] = ()  # clients of the cohort that never answered
    excluded: tuple[int, ...] = ()  # clients whose updates were not finite, see `Faults`
    windows: Mapping[str, int] = NOTHING  # number of models in averages whose window varies
    privacy: Mapping[str, float] = NOTHING  # epsilon so far, and the next clip
    bytes: Mapping[str, int] = NOTHING  # sent to and by the clients of the round
    clients: Mapping[str, Any] = NOTHING  # model -> its metric over clients, see `summary`
    calibration: Mapping[str, Any] = NOTHING  # model -> bins of confidence, see `reliability`
    finetuned: Mapping[str, Any] = NOTHING  # model -> clients before and after fine-tuning
