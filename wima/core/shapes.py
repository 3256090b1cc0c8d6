"""Shapes of decay: the learning-rate decay that an average of the last models emulates.

Replay the n steps of a window from the model before it, with step j = 0 ... n - 1 scaled by a decay
that falls from 1 to 0.  That gives the average of the n models of the window, oldest first, with

    weight of model j = decay(j) - decay(j + 1)          j = 0 ... n - 1

linear: all weights are equal; it is the plain mean (Eq. 6 and 7 of the paper).
sqrt: decay 1 - sqrt(j/n); the oldest model has the largest weight, the newest the smallest.
cosine: decay (1 + cos(pi j/n))/2; the weights are largest in the middle and small at both ends.

Tian et al., WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training
(2025).  The shape 1 - sqrt: Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed
Training Durations (2024).
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, sqrt

from wima.core.checks import check_one_of

LINEAR = "linear"

# n times the decay at step j, so that the linear differences are exactly 1.
SHAPES: dict[str, Callable[[int, int], float]] = {
    LINEAR: lambda j, n: n - j,
    "sqrt": lambda j, n: n - sqrt(j * n),
    "cosine": lambda j, n: n * (1 + cos(pi * j / n)) / 2,
}


def check_shape(name: str, shape: str) -> None:
    """Raise `UsageError` unless the shape is known."""
    check_one_of(name, shape, tuple(SHAPES))


def weight(shape: str, j: int, n: int) -> float:
    """n times the weight of model j = 0 ... n - 1 of a window, oldest first."""
    decay = SHAPES[shape]
    return decay(j, n) - decay(j + 1, n)
