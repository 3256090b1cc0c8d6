"""A hyper-parameter outside its range is refused where it is given, with its name and the range."""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from math import inf, nan

import numpy as np
import pytest

import wima
from tests.helpers.toys import quadratics
from wima import SGD, SWA, UsageError, algorithms, averaging
from wima.algorithms import server_opt
from wima.simulation import schedules

REGISTRIES = [algorithms.BY_NAME, averaging.BY_NAME, schedules.BY_NAME, server_opt.BY_NAME]
KINDS = sorted({kind for registry in REGISTRIES for kind in registry.values()}, key=str)


def fields_of(kinds, default_type) -> list:
    """(class, field) for all fields whose default has exactly one of these types."""
    return [
        pytest.param(kind, field, id=f"{kind.__name__}.{field.name}")
        for kind in kinds
        for field in fields(kind)
        if type(field.default) in default_type
    ]


NUMBERS = fields_of(KINDS, (int, float))
SWITCHES = fields_of(KINDS, (bool,))
TEXTS = fields_of(KINDS, (str,))

# class, field, allowed, some values outside, the nearest values inside
RANGES = [
    (wima.FedProx, "mu", "[0, inf)", [-1e-9, -1], [0, 1e9]),
    (wima.AdaBest, "mu", "[0, inf)", [-0.02], [0, 5.0]),
    (wima.AdaBest, "beta", "[0, 1)", [1, 1.5, -0.1], [0, 0.999]),
    (wima.FedDyn, "alpha", "(0, inf)", [0, 0.0, -0.01], [1e-9, 100]),
    (wima.FedCM, "alpha", "(0, 1]", [0, -0.1, 1.0001], [1e-9, 1]),
    (wima.FedACG, "lam", "[0, 1)", [1, 1.0, -0.1], [0, 0.99]),
    (wima.FedACG, "beta", "[0, inf)", [-0.01], [0, 7]),
    (wima.Mime, "momentum", "[0, 1)", [1, 2, -0.9], [0, 0.99]),
    (wima.MimeLite, "momentum", "[0, 1)", [1, 2, -0.9], [0, 0.99]),
    (wima.EMA, "decay", "[0, 1)", [1, 1.0, -0.5], [0, 0.999]),
    (wima.PowerEMA, "sigma", "(0, 0.288)", [0, 0.288, -0.1], [0.01, 0.28]),
    (wima.SWA, "start", "[0, inf)", [-1, -0.5], [0, 0.5, 1, 2.0, 1000]),
    (wima.SWA, "start", "a whole round or a share in (0, 1)", [1.5, 10.25], [0.999]),
    (wima.SWA, "cycle", "a positive integer", [0, -1, 2.0], [1, 1000]),
    (wima.LAWA, "k", "a positive integer", [0, -1, 2.0], [1, 1000]),
    (wima.LAWA, "every", "a positive integer", [0, -1, 1.5], [1, 1000]),
    (wima.WIMA, "window", "a positive integer", [0, -1, 2.0], [1, 1000]),
    (wima.Exponential, "decay", "(0, 1]", [0, -0.1, 1.01], [1e-9, 1]),
    (wima.Cosine, "final", "[0, 1]", [-0.1, 1.01], [0, 1]),
    (wima.Cyclic, "start", "[0, inf)", [-1], [0, 0.5, 3]),
    (wima.Cyclic, "start", "a whole round or a share in (0, 1)", [2.5], [0.01]),
    (wima.Cyclic, "cycle", "a positive integer", [0, -5, 1.0], [1]),
    (wima.Cyclic, "low", "(0, 1]", [0, -0.01, 1.1], [1e-9, 1]),
    (wima.SGD, "lr", "a positive number", [0, -0.1], [1e-9, 10]),
    (wima.SGD, "momentum", "[0, 1)", [1, -0.1], [0, 0.99]),
    (wima.Momentum, "lr", "a positive number", [0, -0.1], [1e-9, 10]),
    (wima.Momentum, "momentum", "[0, 1)", [1, -0.1], [0, 0.99]),
    (wima.Adagrad, "lr", "a positive number", [0, -0.1], [1e-9, 10]),
    (wima.Adagrad, "tau", "(0, inf)", [0, -1e-3], [1e-9, 1]),
    (wima.Adagrad, "v0", "[0, inf)", [-1e-6], [0, 0.1]),
] + [
    (kind, *row)
    for kind in (wima.Adam, wima.Yogi)
    for row in (
        ("lr", "a positive number", [0, -0.1], [1e-9, 10]),
        ("beta1", "[0, 1)", [1, -0.1], [0, 0.99]),
        ("beta2", "[0, 1)", [1, 1.0, -0.1], [0, 0.999]),
        ("tau", "(0, inf)", [0, -1e-3], [1e-9, 1]),
        ("v0", "[0, inf)", [-1e-6], [0, 0.1]),
    )
]


def refusal(kind: type, field: str, value: object) -> str:
    """The message with which the class refuses the value."""
    with pytest.raises(UsageError) as error:
        kind(**{field: value})
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "field", "allowed", "outside", "inside"),
    [pytest.param(*row, id=f"{row[0].__name__}.{row[1]}-{row[2][:7]}") for row in RANGES],
)
def test_a_value_outside_its_range_is_refused_with_name_range_and_value(
    kind, field, allowed, outside, inside
):
    for value in outside:
        message = refusal(kind, field, value)
        assert message.startswith(f"{kind.__name__}.{field} must be "), message
        assert allowed in message and message.endswith(f", got {value!r}."), message
    for value in inside:
        assert getattr(kind(**{field: value}), field) == value


def test_the_table_of_ranges_has_every_number_that_can_be_given():
    listed = {(kind, field) for kind, field, *_ in RANGES}
    assert listed == {(kind, field.name) for kind, field in (p.values for p in NUMBERS)}


# Values that no field of a type takes. The text "False" is true for Python.
WRONG = {
    float: [nan, inf, -inf, True, False, "0.5", "1", None, [0.5], 1j],
    bool: ["False", "no", "", 0, 1, None],
    str: ["III", "", "FEDSAM", 2, None, True],
}
WORDS = {
    "option": "I, II",
    "begin": "first, initial, debiased",
    "phase": "fedsam, izmailov",
    "part": "all, classifier, features",
    "shape": "linear, sqrt, cosine",
}


@pytest.mark.parametrize(("kind", "field"), [*NUMBERS, *SWITCHES, *TEXTS])
def test_a_value_of_another_kind_is_refused_with_those_that_are_allowed(kind, field):
    default = type(field.default)
    for value in WRONG[float if default is int else default]:
        message = refusal(kind, field.name, value)
        assert message.startswith(f"{kind.__name__}.{field.name} must be "), message
        assert message.endswith(f", got {value!r}."), message
        assert default is not str or f"must be one of {WORDS[field.name]}, got" in message


def test_an_integer_that_no_float_can_hold_is_refused_unless_it_is_a_count():
    huge = 10**400
    for kind, field in (parameter.values for parameter in NUMBERS):
        if type(field.default) is int:
            assert getattr(kind(**{field.name: huge}), field.name) == huge
        else:
            assert refusal(kind, field.name, huge).startswith(f"{kind.__name__}.{field.name} must")


@pytest.mark.parametrize("start", [12, 12.0, 500])
@pytest.mark.parametrize("what", ["averagers", "schedule"])
def test_a_start_after_the_end_is_refused_when_the_run_is_set_up(what, start):
    given = {"averagers": [SWA(start)], "schedule": wima.Cyclic(start=start)}
    name = {"averagers": "SWA", "schedule": "Cyclic"}[what]
    task = quadratics(np.ones((3, 2)), np.ones((3, 2)), [4, 5, 6])
    message = f"{name}.start must be a round of the run, 0 ... 11, got {start!r}."
    with pytest.raises(UsageError) as error:
        wima.simulate(task, rounds=12, clients_per_round=2, lr=0.1, **{what: given[what]})
    assert str(error.value) == message


def test_nesterov_needs_momentum():
    assert "nesterov needs a momentum in (0, 1)" in refusal(SGD, "nesterov", True)


@pytest.mark.parametrize("kind", algorithms.BY_NAME.values())
def test_hyper_parameters_of_algorithms_are_given_by_name(kind):
    with pytest.raises(TypeError, match="positional argument"):
        kind(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_hyper_parameters_have_defaults_are_shown_and_do_not_change(kind):
    made = kind()
    assert made == kind() and hash(made) == hash(kind())
    for field in fields(kind):
        assert field.default is not MISSING and getattr(made, field.name) == field.default
        assert f"{field.name}={field.default!r}" in repr(made)
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, field.default)
    with pytest.raises((FrozenInstanceError, TypeError)):
        made.momentums = 0.9  # a slip of the pen makes no new field
    with pytest.raises(TypeError, match="momentums"):
        kind(momentums=0.9)
