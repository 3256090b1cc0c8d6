"""Optuna's study: proposes each trial from the results of earlier ones, and prunes trials.

The study is rebuilt from these results whenever it is used, and its randomness has an address.  So
a search that was stopped continues as if it had not been, without storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from optuna import Study, Trial, create_study, create_trial, logging
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from wima.core.randomness import rng
from wima.experiments.space import Point, Range
from wima.experiments.tune import Objective, Result

ATTEMPTS = 20  # to propose a point that was not tried
WARM_UP = 4  # runs are not pruned in the first 1 / 4 of the rounds
STATES = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "diverged": TrialState.PRUNED}


class History:
    """The results of all trials so far."""

    def __init__(self, ranges: list[Range], objective: Objective, seed: int) -> None:
        self._ranges, self._sign, self._seed = ranges, objective.sign, seed
        self._space = {r.key: _distribution(r) for r in ranges}
        self._trials: list[FrozenTrial] = []

    def add(self, point: Point, result: Result, curve: Mapping[int, float]) -> None:
        """Add a trial.  curve: the metric by round, against which other trials are pruned.

        A diverged trial counts as pruned before its first evaluation, the worst result.
        """
        state = STATES.get(result.state, TrialState.FAIL)
        if state is TrialState.COMPLETE and not isfinite(result.value):
            state = TrialState.FAIL
        self._trials.append(
            create_trial(
                state=state,
                value=result.value if state is TrialState.COMPLETE else None,
                params=point,
                distributions=self._space,
                intermediate_values={} if result.state == "diverged" else dict(curve),
            )
        )

    def propose(self, taken: list[Point]) -> Point | None:
        """The next point that was not tried; None if none is found."""
        for attempt in range(ATTEMPTS):
            found = self._study(attempt).ask(self._space).params
            point = {r.key: r.rounded(found[r.key]) for r in self._ranges}
            if point not in taken:
                return point
        return None

    def begin(self, point: Point, rounds: int) -> Trial:
        """A running trial, for the pruner."""
        study = self._study(0, rounds // WARM_UP)
        study.enqueue_trial(point)
        return study.ask(self._space)

    def _study(self, attempt: int, warm_up: int = 0) -> Study:
        logging.set_verbosity(logging.WARNING)
        seed = int(rng("tune", self._seed, len(self._trials), attempt).integers(2**32))
        study = create_study(
            sampler=TPESampler(seed=seed),
            pruner=MedianPruner(n_warmup_steps=warm_up),
            direction="maximize" if self._sign > 0 else "minimize",
        )
        study.add_trials(self._trials)
        return study


def _distribution(values: Range) -> BaseDistribution:
    low, high = values.low, values.high
    if values.is_whole:
        return IntDistribution(int(low), int(high), log=values.log)
    return FloatDistribution(low, high, log=values.log)
