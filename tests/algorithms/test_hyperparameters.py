"""A hyper-parameter outside its range is refused where it is given, with its name and the range."""

from __future__ import annotations

import re
from dataclasses import MISSING, FrozenInstanceError, fields
from math import copysign, inf, isfinite, nan, nextafter

import numpy as np
import pytest

import wima
from tests.helpers.toys import quadratics
from wima import SGD, SWA, UsageError, algorithms, averaging
from wima.algorithms import server_opt
from wima.simulation.options import SCHEDULES

REGISTRIES = [algorithms.BY_NAME, averaging.BY_NAME, SCHEDULES, server_opt.BY_NAME]
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

INTERVAL = re.compile(r"must be a number in ([\[(])(\S+), (\S+)([\])])")


def refusal(kind: type, field: str, value: object) -> str:
    """The message with which the class refuses the value."""
    with pytest.raises(UsageError) as error:
        kind(**{field: value})
    return str(error.value)


def nearest(message: str) -> tuple[list[float], list[float]]:
    """The values nearest to the ends of the range in a message: those inside, those outside."""
    if "a positive integer" in message:
        return [1, 1000], [0, -1, 2.0]
    if "a positive number" in message:
        return [nextafter(0, 1), 1e9], [0, -0.1]
    found = INTERVAL.search(message)
    assert found, message
    opening, low, high, closing = found.groups()
    inside, outside = [], []
    for end, is_closed, up in ((low, opening == "[", inf), (high, closing == "]", -inf)):
        if isfinite(number := float(end)):
            inside += [number] if is_closed else [nextafter(number, up)]
            outside += [number - copysign(1, up), nextafter(number, -up) if is_closed else number]
        else:
            inside.append(copysign(1e9, number))
    return inside, outside


@pytest.mark.parametrize(("kind", "field"), NUMBERS)
def test_a_number_outside_the_range_that_the_message_names_is_refused(kind, field):
    """Whatever the range is: a new hyper-parameter needs a check in its class and nothing here."""
    inside, outside = nearest(refusal(kind, field.name, nan))
    for value in outside:
        message = refusal(kind, field.name, value)
        assert message.startswith(f"{kind.__name__}.{field.name} must be "), message
        assert message.endswith(f", got {value!r}."), message
    for value in inside:
        assert getattr(kind(**{field.name: value}), field.name) == value


@pytest.mark.parametrize("kind", [SWA, wima.Cyclic])
def test_a_start_is_a_round_or_a_share_of_the_run(kind):
    for value in (1.5, 10.25):
        message = f"{kind.__name__}.start must be a whole round or a share in (0, 1), got {value}."
        assert refusal(kind, "start", value) == message
    for value in (0, 0.5, 0.999, 1, 2.0, 1000):
        assert kind(start=value).start == value


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
