"""The differential privacy of a run: which runs can be private, and what they spend.

Accounting uses Rényi divergences, computed by Google's dp-accounting (extra `privacy`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from math import ceil, inf
from typing import Any, Literal, NamedTuple

from wima import algorithms
from wima.algorithms.base import Algorithm
from wima.algorithms.traffic import traffic
from wima.core.errors import UsageError, check
from wima.engine.options import RunOptions
from wima.engine.privacy import Gaussian
from wima.simulation.cohorts import Cohorts
from wima.task.task import Task

LEAST, MOST = 0.01, 1000.0  # the range searched for the noise
DIGITS = 1000  # noise is rounded up to a multiple of 1 / DIGITS
RELATIONS = {
    "poisson": "one client more or less",
    "uniform": "one client in place of another",
}


class Sampling(NamedTuple):
    """How cohorts are drawn, which determines the bound and the definition of neighbouring data.

    poisson: each client takes part with probability cohort / clients; data sets are neighbours if
    one has one client more, which changes the sum by at most clip.
    uniform: cohorts of a fixed size without replacement; neighbours differ in one client, which
    changes the sum by at most 2 clip.  Theorem 27 of Wang, Balle and Kasiviswanathan 2019.
    """

    kind: Literal["poisson", "uniform"]
    cohort: int
    clients: int

    def round(self, noise: float) -> Any:
        """A round as an event of dp-accounting; noise: in units of clip."""
        dp = _accounting()
        if self.kind == "poisson":
            return dp.PoissonSampledDpEvent(self.cohort / self.clients, dp.GaussianDpEvent(noise))
        event = dp.GaussianDpEvent(noise / 2)
        return dp.SampledWithoutReplacementDpEvent(self.clients, self.cohort, event)

    def accountant(self) -> Any:
        dp = _accounting()
        add, replaced = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE
        return dp.rdp.RdpAccountant(
            neighboring_relation=add if self.kind == "poisson" else replaced
        )


class Ledger:
    """The privacy that a run spends."""

    def __init__(self, privacy: Gaussian, sampling: Sampling) -> None:
        self.privacy, self.sampling = privacy, sampling
        if privacy.noise:
            one = sampling.accountant().compose(sampling.round(privacy.noise))
            self._orders, self._divergences = one._orders, one._rdp  # of one round; rounds add up

    def epsilon(self, rounds: int) -> float:
        """The epsilon after these rounds, for the mechanism's delta; infinite without noise."""
        if not self.privacy.noise:
            return inf
        spent = rounds * self._divergences
        return float(_accounting().rdp.compute_epsilon(self._orders, spent, self.privacy.delta)[0])

    def in_words(self, rounds: int) -> str:
        """The guarantee after these rounds."""
        kind, cohort, clients = self.sampling
        return (
            f"Privacy: epsilon = {self.epsilon(rounds):.4g} at delta = {self.privacy.delta:g} for "
            f"{RELATIONS[kind]}, after {rounds} rounds with noise {self.privacy.noise:g} and "
            f"{kind} cohorts of {cohort} of {clients} clients."
        )


def ledger(
    privacy: Gaussian, task: Task, algorithm: Algorithm, run: RunOptions, cohorts: Cohorts | str
) -> Ledger:
    """The ledger of a run; finds the noise if epsilon is given, raises if it cannot be private."""
    _check_possible(task, algorithm, run, cohorts)
    assert not callable(cohorts)
    kind: Literal["poisson", "uniform"] = "poisson" if cohorts == "poisson" else "uniform"
    sampling = Sampling(kind, run.clients_per_round, task.data.num_clients)
    if privacy.epsilon is not None:
        noise = least_noise(privacy.epsilon, privacy.delta, sampling, run.rounds)
        privacy = replace(privacy, noise=noise, epsilon=None)
    return Ledger(privacy, sampling)


def least_noise(epsilon: float, delta: float, sampling: Sampling, rounds: int) -> float:
    """The least noise for which these rounds cost at most epsilon."""
    dp = _accounting()
    most, least = (
        Ledger(Gaussian(clip=1.0, noise=noise, delta=delta), sampling).epsilon(rounds)
        for noise in (LEAST, MOST)
    )
    if most <= epsilon:
        return LEAST
    check(
        least <= epsilon,
        f"Even with a noise of {MOST:g} times clip, {rounds} rounds cost more than epsilon = "
        f"{epsilon:g} at delta = {delta:g}. Raise epsilon, or run fewer rounds.",
    )
    found = dp.calibrate_dp_mechanism(
        sampling.accountant,
        lambda noise: dp.SelfComposedDpEvent(sampling.round(noise), rounds),
        epsilon,
        delta,
        dp.ExplicitBracketInterval(LEAST, MOST),
        tol=1 / DIGITS,
    )
    return ceil(float(found) * DIGITS) / DIGITS


def _check_possible(
    task: Task, algorithm: Algorithm, run: RunOptions, cohorts: Cohorts | str
) -> None:
    name, known = type(algorithm).__name__, algorithms.BY_NAME.values()
    check(
        traffic(algorithm).up == 1,
        f"{name} cannot be private: its clients send more than their update, which would have to "
        f"be clipped too. {', '.join(k.__name__ for k in known if traffic(k()).up == 1)} can.",
    )
    check(
        task.trained is None or task.layout is None or task.trained == task.layout.size,
        "A model with running statistics (BatchNorm) cannot be private: they are averaged without "
        "noise. Use GroupNorm.",
    )
    check(
        run.weighting == "uniform",
        "privacy needs weighting=uniform: weighted by examples, one client could outweigh all "
        f"others; got weighting={run.weighting}.",
    )
    check(
        not callable(cohorts),
        "privacy needs cohorts 'uniform' or 'poisson'; accounting supports no others.",
    )


def _without_orders(record: logging.LogRecord) -> bool:
    """Drop messages about orders of the divergence that do not converge; enough others do."""
    return "Excluding this order" not in str(record.msg)


def _accounting() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]

        logging.getLogger("absl").addFilter(_without_orders)
    except ImportError:
        raise UsageError(
            "privacy needs dp-accounting, which is not installed: pip install 'wima[privacy]'"
        ) from None
    return dp_accounting
