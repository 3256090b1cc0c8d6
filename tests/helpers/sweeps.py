"""Sweeps over small runs, played to their end."""

from wima.experiments.plan import expand_grid
from wima.experiments.sweep import Sweep

SMALL = ["rounds=6", "eval_every=2", "eval_last=2", "engine=serial"]


def jobs_of(*axes, seeds=(0,), settings=SMALL):
    return expand_grid("sweep", "digits", list(settings), list(axes), list(seeds), "")[1]


def played(jobs, folder, workers=1):
    sweep = Sweep(jobs, folder, workers)
    for _ in sweep.run():
        pass
    return sweep


def states(sweep):
    return [state.state for state in sweep.states]
