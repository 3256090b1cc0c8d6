"""What the README, the pages, docstrings and examples show runs, and does what they say.

`test_commands.py` has the commands, `test_notebooks.py` the notebooks.
"""

from __future__ import annotations

import doctest
import json
import re
import runpy
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wima
from tests.helpers.documents import (
    DOCS,
    NOTEBOOKS,
    PAGES,
    anchors,
    blocks,
    links,
    run,
    text_of,
)
from tests.helpers.paths import ROOT
from wima import algorithms, averaging
from wima.algorithms import server_opt

NONE = "\N{EN DASH}"  # what tables show for nothing
MARKS = {"flower": pytest.mark.world}
RUNNING = [
    pytest.param(page, id=page.stem, marks=MARKS.get(page.stem, ()))
    for page in PAGES
    if blocks(page, "python")
]


def accuracies(text: str) -> dict[str, float]:
    """By model: shares after its name, or percents in a table's second column."""
    shares = re.findall(r"(\w+):? (0\.\d+|1\.0)", text)
    percents = re.findall(r"^│ (\S+) +│ +([\d.]+) │", text, re.M)
    return dict([(n, float(v)) for n, v in shares] + [(n, float(v) / 100) for n, v in percents])


def check_readme(names: dict[str, Any], printed: str) -> None:
    found = accuracies(printed)  # "plain" is that of the simulator's table
    said = re.search(r"It prints `plain (0\.\d+)`, `wima (0\.\d+)`", text_of(PAGES[0]))
    shown = re.findall(r"^(?:plain|wima) (0\.\d+)$", printed, re.M)
    assert said and [*map(float, shown)] == pytest.approx([*map(float, said.groups())], abs=0.005)
    assert 0.5 < found["plain"] < found["wima50"]


def check_python(names: dict[str, Any], printed: str) -> None:
    plain, average = (row.mean for row in names["result"].summary())
    assert names["gain"] == pytest.approx(average - plain)
    read, made = (names[name].to_pandas() for name in ("again", "result"))
    assert read.drop(columns="seconds").equals(made.drop(columns="seconds"))
    assert "wima10" in printed


def check_flower(names: dict[str, Any], printed: str) -> None:
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return [p + 0.1 for p in parameters], 10, {}

        def evaluate(self, parameters, config):
            return 0.0, 1, {}

    page = text_of(DOCS / "flower.md")
    found = re.search(r"{'accuracy': (0\.\d+), 'wima10/accuracy': (0\.\d+)}", printed)
    assert found and float(found[2]) > float(found[1])
    said = re.search(r"# accuracy (0\.\d+), wima10/accuracy (0\.\d+)", page)  # in a comment
    assert said
    assert [*map(float, found.groups())] == pytest.approx([*map(float, said.groups())], abs=0.02)
    assert "plain ['plain', 'wima10']" in printed and "(64, 10)" in printed
    said = re.search(r"# (\d+) clients, mean (.*), worst (.*)", page)
    assert said
    shown = [names["found"][key] for key in ("count", "mean", "worst")]
    assert shown == pytest.approx([*map(float, said.groups())], abs=0.02)
    average, plain = names["result"].models["wima5"], names["result"].models["plain"]
    assert not np.array_equal(average["w"].numpy(), plain["w"].numpy())
    masking = ClientApp(lambda context: Client().to_client(), mods=[secaggplus_mod])
    names["run_flower"](names["secure_app"], masking, nodes=3, workers=1)


CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "README": check_readme,
    "python": check_python,
    "flower": check_flower,
}


@pytest.mark.parametrize("page", RUNNING)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    if page.stem == "flower":
        if find_spec("flwr") is None:
            pytest.skip("the extra flower is not installed")
        import tests.helpers.flower_toys  # noqa: F401  (switches telemetry off)
    monkeypatch.chdir(tmp_path)
    names, printed = run(page), capsys.readouterr().out
    assert printed
    CHECKS.get(page.stem, lambda *_: None)(names, printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pieces_of_code_are_python(page):
    for code in blocks(page, "py"):
        compile(code, page.name, "exec")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    found = accuracies(capsys.readouterr().out)
    averages = [value for name, value in found.items() if "wima" in name and name != "wima10"]
    assert averages and all(value > found["plain"] for value in averages)


@cache
def source() -> Any:
    """The package as the reference reads it: Python forgets the docstrings of variables."""
    griffe = pytest.importorskip("griffe", reason="the extra docs is not installed")
    return griffe.load("wima", search_paths=[ROOT])


def public_names() -> list[str]:
    names = [f"wima.{name}" for name in wima.__all__]
    if find_spec("flwr"):
        names += [f"wima.flower.{name}" for name in import_module("wima.flower").__all__]
    return names


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_has_a_docstring_whose_examples_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some examples write files
    docstring = source()[name.removeprefix("wima.")].docstring
    assert docstring, f"{name} has no docstring"
    test = doctest.DocTestParser().get_doctest(docstring.value, {}, name, None, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)


PATTERNS = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
LINKING = [*(page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))), *NOTEBOOKS]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    for name in re.findall(r"`((?:wima|tests|examples|benchmarks)/[\w/.-]+)`", text_of(page)):
        assert (ROOT / name).exists(), name


def test_pages_that_messages_and_docstrings_name_exist():
    for folder in ("wima", "examples", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"docs/[\w/-]+\.md", text_of(path)):
                assert (ROOT / name).is_file(), f"{path} names {name}"


def test_a_page_leads_to_every_notebook():
    linked = {Path(link).name for page in PAGES for link in links(page)}
    assert {path.name for path in NOTEBOOKS} <= linked


def test_every_method_and_every_averager_has_its_section():
    methods = set(re.findall(r"^## (.+)$", text_of(DOCS / "algorithms.md"), re.M))
    named = {cls.__name__.casefold() for cls in algorithms.BY_NAME.values()}
    assert named <= {method.casefold() for method in methods}
    averagers = set(re.findall(r"^## (.+)$", text_of(DOCS / "averagers.md"), re.M))
    assert {cls.__name__ for cls in averaging.BY_NAME.values()} <= averagers


@pytest.mark.parametrize(
    "cls", [*algorithms.BY_NAME.values(), *server_opt.BY_NAME.values()], ids=lambda c: c.__name__
)
def test_tables_show_the_hyper_parameters_of_a_class_and_their_defaults(cls):
    defaults = [f"{f.name} {json.dumps(f.default)}".removesuffix(".0") for f in fields(cls)]
    lines = text_of(DOCS / "algorithms.md").splitlines()
    rows = [line for line in lines if f"| `{cls.__name__}` |" in line]
    assert rows and all(row.endswith(f"| {', '.join(defaults) or NONE} |") for row in rows)


def test_no_file_names_a_path_of_a_machine() -> None:
    suspicious = re.compile(r"(?<![\w.])/(root|home|work|tmp)/\w")
    patterns = ("wima/**/*.py", "docs/**/*.md", "*.md", "examples/**/*.py", "examples/**/*.ipynb")
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    found = [str(p.relative_to(ROOT)) for p in paths if suspicious.search(text_of(p))]
    assert found == []
