"""An averager that keeps the gradients it is given, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from wima.averaging import Averager


@dataclass(frozen=True)
class Listener(Averager):
    """Its state is the newest model, followed by all that came as `fresh`."""

    needs_gradient = True

    def init(self, w):
        return (w.clone(),)

    def use_gradient(self, state, gradient):
        return (*state, gradient.clone())

    def update(self, state, w, past):
        return (w.clone(), *state[1:])

    def value(self, state):
        return state[0]


def heard(strategy) -> list:
    """What the listener of an averaged strategy was given, as arrays."""
    return [fresh.numpy() for fresh in strategy.averaging._averages.states["listener"][1:]]
