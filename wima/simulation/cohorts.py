"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from wima.core.checks import check_count
from wima.core.errors import check, unknown
from wima.core.randomness import rng

Cohorts: TypeAlias = Callable[[int, int], Sequence[int]]  # (seed, t) -> clients


def uniform_cohorts(num_clients: int, clients_per_round: int) -> Cohorts:
    """Clients drawn without replacement: a function of (seed, t), the same for every algorithm."""

    def cohort(seed: int, t: int) -> list[int]:
        drawn = rng("cohort", seed, t).choice(num_clients, clients_per_round, replace=False)
        return sorted(drawn.tolist())

    return cohort


def poisson_cohorts(num_clients: int, clients_per_round: int) -> Cohorts:
    """Each client takes part with the same probability, independently of the others.

    The size of a cohort varies around clients_per_round and can be 0.
    """

    def cohort(seed: int, t: int) -> list[int]:
        draw = rng("cohort", seed, t)
        size = draw.binomial(num_clients, clients_per_round / num_clients)
        return sorted(draw.choice(num_clients, size, replace=False).tolist())

    return cohort


BY_NAME = {"uniform": uniform_cohorts, "poisson": poisson_cohorts}


def make_cohorts(given: Cohorts | str, num_clients: int, clients_per_round: int) -> Cohorts:
    """Cohorts by the name of a rule, or from a user's function, whose results are checked."""
    if not callable(given):
        if given not in BY_NAME:
            raise unknown("cohorts", given, BY_NAME)
        return BY_NAME[given](num_clients, clients_per_round)

    def cohort(seed: int, t: int) -> list[int]:
        return checked_cohort(given(seed, t), t, num_clients, clients_per_round)

    return cohort


def checked_cohort(drawn: Sequence[int], t: int, clients: int, most: int) -> list[int]:
    """The clients of round t that a user's function drew; raises if they are invalid."""
    cohort = [int(client) for client in drawn]
    check(
        0 < len(set(cohort)) == len(cohort) <= most
        and all(0 <= client < clients for client in cohort),
        f"The cohort of round {t} must be 1 to {most} different clients in 0 ... "
        f"{clients - 1}, got {cohort}.",
    )
    return cohort


def check_cohort_size(clients_per_round: int, num_clients: int) -> None:
    """Raise unless a cohort has at least one client and at most all of them."""
    check_count("clients_per_round", clients_per_round)
    check(
        clients_per_round <= num_clients,
        f"clients_per_round must be at most the number of clients, {num_clients}, "
        f"got {clients_per_round}.",
    )
