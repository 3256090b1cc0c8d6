"""The pages on algorithms are complete, and what they show works."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT
from wima import algorithms, averaging, check_algorithm
from wima.algorithms import Algorithm, server_opt
from wima.runs.build import build
from wima.runs.settings import load_settings

DOCS = ROOT / "docs"
PAGES = DOCS / "algorithms"
OWN = DOCS / "adding-an-algorithm.md"
ALL = [OWN, *sorted(PAGES.glob("*.md"))]
METHODS = [*algorithms.BY_NAME, "fedavgm", "server-optimizers"]
SECTIONS = [
    "What it does",
    "Equations",
    "Row of the table",
    "Cost",
    "Deviations, and where other code differs",
    "How to run it",
    "What we measured",
]
NONE = "\N{EN DASH}"  # what tables show for nothing
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in that language."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def commands() -> Iterator[str]:
    """All `wima run` lines, of blocks and in running text."""
    for page in ALL:
        lines = "\n".join(blocks(page, "sh")).splitlines()
        yield from (line for line in lines if line.startswith("wima run"))
        yield from re.findall(r"`(wima run [^`]+)`", prose(page))


def hyper_parameters(cls: Any) -> str:
    """The fields of a class and their defaults, as tables show them."""
    defaults = {field.name: field.default for field in fields(cls)}
    return ", ".join(
        f"{name} {json.dumps(value)}".removesuffix(".0") for name, value in defaults.items()
    )


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a snippet registers ends with the test."""
    monkeypatch.setattr(algorithms, "BY_NAME", dict(algorithms.BY_NAME))


def run(page: Path) -> dict[str, Any]:
    """Execute a page's snippets from top to bottom, as one script; the names it made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{page.name}, block {number}", "exec"), names)
    return names


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_with_all_sections_in_order(name: str) -> None:
    page = PAGES / f"{name}.md"
    assert re.findall(r"^## (.+)$", prose(page), re.MULTILINE) == SECTIONS
    assert len(re.findall(r"^# .+$", prose(page), re.MULTILINE)) == 1
    assert len(blocks(page, "python")) == 1


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_does_takes_three_sentences(name: str) -> None:
    section = prose(PAGES / f"{name}.md").split("## What it does")[1].split("## ")[0]
    assert len(re.findall(r"\.(?:\s|$)", section.strip())) == 3


def test_the_index_names_every_page_and_links_to_files_that_exist() -> None:
    for page in ALL:
        links = re.findall(r"\]\(([^)#]+)\)", prose(page))
        local = [link for link in links if "://" not in link]
        assert all((page.parent / link).is_file() for link in local), page
        if page.name == "README.md":
            assert {p.name for p in PAGES.glob("*.md")} - {"README.md"} <= set(local)


def test_every_averager_has_its_section() -> None:
    headings = re.findall(r"^## (.+)$", prose(PAGES / "averagers.md"), re.MULTILINE)
    assert {cls.__name__ for cls in averaging.BY_NAME.values()} <= set(headings)


@pytest.mark.parametrize(
    ("page", "registry"),
    [("README", algorithms.BY_NAME), ("server-optimizers", server_opt.BY_NAME)],
)
def test_hyper_parameters_and_their_defaults_are_those_of_the_classes(
    page: str, registry: dict[str, type]
) -> None:
    rows = (PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines()
    for cls in registry.values():
        (row,) = (row for row in rows if f"| `{cls.__name__}` |" in row)
        assert row.endswith(f"| {hyper_parameters(cls) or NONE} |")


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_make_a_run(command: str) -> None:
    _, _, source, *overrides = shlex.split(command)
    settings = load_settings(source, ["engine=serial", *overrides])  # auto takes seconds to choose
    with build(settings) as simulation:
        assert simulation.rounds == settings.rounds


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_snippets_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(page)
    assert ("plain" in capsys.readouterr().out) == bool(blocks(page, "python"))


def test_the_example_algorithm_is_short_and_keeps_the_rules() -> None:
    tree, names = ast.parse("\n".join(blocks(OWN, "python"))), run(OWN)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (made,) = (node for node in classes if issubclass(names[node.name], Algorithm))
    first = min(decorator.lineno for decorator in made.decorator_list)
    assert made.end_lineno - first + 1 <= 20
    check_algorithm(names[made.name]())


def test_pages_are_finished_and_name_no_path_of_a_machine() -> None:
    for page in ALL:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:tmp|work|home|root|usr)/", text), page
        assert "{{" not in text, page
