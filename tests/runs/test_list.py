"""`wima list` prints helps without importing anything; they are those of the things themselves."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass

import pytest

from wima import algorithms, averaging, models
from wima.algorithms import server_opt
from wima.data.load import PUBLIC
from wima.data.sets import SUMMARIES
from wima.runs import track
from wima.runs.list import CHOICES
from wima.runs.settings import read_toml
from wima.simulation import privacy
from wima.simulation.measures import finetune
from wima.simulation.options import SCHEDULES

REGISTRIES = {
    "algorithms": algorithms.BY_NAME,
    "averagers": averaging.BY_NAME,
    "servers": server_opt.BY_NAME,
    "privacy": privacy.BY_NAME,
    "finetune": finetune.BY_NAME,
    "schedules": SCHEDULES,
    "models": models.BY_NAME,
    "trackers": track.BY_NAME,
}


def help_of(thing) -> str:
    """The first paragraph of its docstring, and its hyper-parameters with their defaults."""
    text = " ".join(inspect.getdoc(thing).split("\n\n")[0].split()).removesuffix(".")
    if is_dataclass(thing):
        defaults = {f.name: f.default for f in fields(thing) if f.default is not MISSING}
    else:
        parameters = {} if inspect.isclass(thing) else inspect.signature(thing).parameters
        defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
    listed = ", ".join(f"{name}={value!r}" for name, value in defaults.items())
    return f"{text}  ({listed})" if listed else text


@pytest.mark.parametrize("kind", REGISTRIES)
def test_the_helps_are_those_of_the_registered_things(kind):
    expected = {name: help_of(thing) for name, thing in REGISTRIES[kind].items()}
    helps = read_toml(CHOICES)[kind]
    lines = "\n".join(f'{name} = "{text}"' for name, text in expected.items())
    assert list(helps.items()) == list(expected.items()), f"write in {CHOICES}:\n[{kind}]\n{lines}"


def test_every_kind_of_help_is_compared():
    assert set(read_toml(CHOICES)) == set(REGISTRIES)


def test_every_public_data_set_has_a_summary():
    assert set(PUBLIC) < set(SUMMARIES)
