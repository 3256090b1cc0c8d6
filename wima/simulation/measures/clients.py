"""The first metric on each client's own test examples, and its distribution over clients."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from wima.core.errors import UsageError, check
from wima.core.statistics import summary
from wima.data.federated import Array, FederatedData
from wima.simulation.measures.base import Entries, Measure, Metric, total
from wima.simulation.options import RunOptions

Summaries: TypeAlias = dict[str, dict[str, Any]]  # by model


class Clients(Measure):
    """Recorded every `client_eval_every` rounds, and after the last one."""

    all_examples = True

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def due(self, t: int, options: RunOptions) -> bool:
        return options.evaluates_clients(t)

    def part_with_clients(
        self, output: Tensor, y: Tensor, clients: Array | None
    ) -> list[tuple[int, float, int]]:
        """Client, sum and count for each block of consecutive examples of one client."""
        assert clients is not None
        starts = [0, *(np.flatnonzero(clients[1:] != clients[:-1]) + 1).tolist(), len(clients)]
        return [
            (int(clients[a]), *total(self._metric, output[a:b], y[a:b]))
            for a, b in pairwise(starts)
            if clients[a] >= 0
        ]

    def combine(self, parts: list[list[tuple[int, float, int]]]) -> dict[int, float]:
        sums: dict[int, tuple[float, int]] = {}
        for client, summed, count in (block for part in parts for block in part):
            before = sums.get(client, (0.0, 0))
            sums[client] = before[0] + summed, before[1] + count
        return {client: summed / max(1, count) for client, (summed, count) in sums.items()}

    def entries(self, values: dict[str, dict[int, float]]) -> Entries:
        return {"clients": summaries(values)}


def summaries(values: Mapping[str, Mapping[int, float]]) -> Summaries:
    """Summarise model -> client -> value for each model; all but "plain" are compared with it."""
    return {
        name: summary(
            list(of_clients.values()),
            None if name == "plain" else [values["plain"][client] for client in of_clients],
        )
        for name, of_clients in values.items()
    }


def check_clients(there: Array, data: FederatedData, has_metrics: bool) -> None:
    """Raise unless all clients have test examples.  there: those that have."""
    check(
        len(there) > 0,
        "Clients cannot be evaluated: the data set has no test examples per client. Set "
        "client_test=0.2 to hold out a fifth of each client's examples.",
    )
    missing = data.num_clients - len(there)
    if missing:
        first = next(i for i in range(data.num_clients) if i >= len(there) or there[i] != i)
        name = "" if data.names is None else f" ({str(data.names[first])!r})"
        raise UsageError(
            f"Clients cannot be evaluated: {missing} of {data.num_clients} clients have no test "
            f"examples, the first is client {first}{name}. Set client_test=0.2 to hold out a fifth "
            "of each client's examples, or leave such clients out."
        )
    check(
        has_metrics,
        "Clients are compared by the task's first metric, but this task has no metrics.",
    )
