"""What is read from the source code is what the imported things say of themselves."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module

import pytest

from wima.data.load import PUBLIC
from wima.data.sets import SUMMARIES
from wima.runs.list import registry

MODULES = ["algorithms", "averaging", "algorithms.server_opt", "simulation.schedules", "models"]


def defaults(thing) -> dict[str, object]:
    """Of a dataclass's fields, or of a function's keyword arguments."""
    if is_dataclass(thing):
        return {f.name: f.default for f in fields(thing) if f.default is not MISSING}
    parameters = {} if inspect.isclass(thing) else inspect.signature(thing).parameters
    return {p.name: p.default for p in parameters.values() if p.default is not p.empty}


@pytest.mark.parametrize("module", [*MODULES, "runs.trackers"])
def test_the_source_has_the_registry_that_python_has(module):
    things = import_module(f"wima.{module}").BY_NAME
    read = registry(module)
    assert list(read) == list(things)
    for name, thing in things.items():
        assert read[name].docstring == (inspect.getdoc(thing) or "")
        assert read[name].defaults == defaults(thing)


def test_every_public_data_set_has_a_summary():
    assert set(PUBLIC) < set(SUMMARIES)
