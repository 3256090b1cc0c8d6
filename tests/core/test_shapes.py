"""Weights of a window are the differences of the learning rate's decay."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.pseudocode import DECAYS
from wima.core.shapes import SHAPES, weight

PAGE = ROOT / "docs" / "averaging.md"
LENGTHS = [1, 2, 3, 4, 10, 100, 1000]


def weights(shape: str, n: int) -> list[float]:
    """Of n models, oldest first."""
    return [weight(shape, j, n) / n for j in range(n)]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_positive_add_up_to_one_and_are_differences_of_the_decay(shape, n):
    decay = [DECAYS[shape](j, n) for j in range(n + 1)]
    assert weights(shape, n) == pytest.approx([a - b for a, b in pairwise(decay)], abs=1e-14)
    assert min(weights(shape, n)) > 0 and sum(weights(shape, n)) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("n", LENGTHS)
def test_linear_weights_are_exactly_equal(n):
    assert {weight("linear", j, n) for j in range(n)} == {1}


@pytest.mark.parametrize("n", LENGTHS[1:])
def test_sqrt_has_the_largest_weight_on_the_oldest_model_and_falls_from_there(n):
    found = weights("sqrt", n)
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(sqrt(1 / n)) and found[-1] < 1 / n < found[0]


@pytest.mark.parametrize("n", LENGTHS[3:])
def test_cosine_has_the_largest_weights_in_the_middle_and_is_symmetric(n):
    found = weights("cosine", n)
    assert found == pytest.approx(found[::-1], abs=1e-14)
    older = found[: n // 2]
    assert older == sorted(older) and found[0] < 1 / n < found[n // 2]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_shows_the_weights_of_four_models(shape):
    (row,) = (
        line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{shape}`")
    )
    assert ", ".join(f"{share:.3f}" for share in weights(shape, 4)) in row
