"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from wima.core.checks import check_count
from wima.core.errors import check
from wima.core.randomness import rng

Cohorts: TypeAlias = Callable[[int, int], Sequence[int]]  # (seed, t) -> clients


def uniform_cohorts(num_clients: int, clients_per_round: int) -> Cohorts:
    """Clients drawn without replacement: a function of (seed, t), the same for every algorithm."""

    def cohort(seed: int, t: int) -> list[int]:
        drawn = rng("cohort", seed, t).choice(num_clients, clients_per_round, replace=False)
        return sorted(drawn.tolist())

    return cohort


def checked_cohort(drawn: Sequence[int], t: int, clients: int, most: int) -> list[int]:
    """The clients of round t, checked: they may come from a user's function."""
    cohort = [int(client) for client in drawn]
    check(
        0 < len(set(cohort)) == len(cohort) <= most
        and all(0 <= client < clients for client in cohort),
        f"The cohort of round {t} must be 1 to {most} different clients in 0 ... "
        f"{clients - 1}, got {cohort}.",
    )
    return cohort


def check_cohort_size(clients_per_round: int, num_clients: int) -> None:
    """A cohort has at least one client and at most all of them."""
    check_count("clients_per_round", clients_per_round)
    check(
        clients_per_round <= num_clients,
        f"clients_per_round must be at most the number of clients, {num_clients}, "
        f"got {clients_per_round}.",
    )
