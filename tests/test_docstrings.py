"""Every public name has an example in its docstring, and what the example shows is what happens.

Docstrings are read from the source, as the reference reads them: those of the two Flower apps
belong to variables, and Python forgets them.
"""

from __future__ import annotations

import doctest
from functools import cache
from pathlib import Path

import pytest

import wima
import wima.flower

griffe = pytest.importorskip("griffe", reason="the extra docs is not installed")
NAMES = [f"{package.__name__}.{n}" for package in (wima, wima.flower) for n in package.__all__]


@cache
def package() -> griffe.Module:
    return griffe.load("wima", search_paths=[Path(wima.__file__).parents[1]])


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_works(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some examples write files
    docstring = package()[name.removeprefix("wima.")].docstring
    test = doctest.DocTestParser().get_doctest(docstring.value, {}, name, None, 0)
    assert test.examples, f"the docstring of {name} has no example"
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)
