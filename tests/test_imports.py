"""Imports between the rooms of the package point down, and no modules import each other in a ring.

Every import statement counts, those inside functions and under `TYPE_CHECKING` too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

# Room -> the rooms that it may import.
ROOMS = {
    "core": "",
    "storage": "core",
    "data": "core storage",
    "models": "core",
    "algorithms": "core",
    "averaging": "core storage",
    "training": "core storage averaging",
    "simulation": "core storage data models algorithms averaging",
    "runs": "core storage data models algorithms averaging simulation",
    "model_files": "core storage",
    "experiments": "core storage averaging simulation runs",
    "report": "core storage runs experiments",
    "flower": "core storage data algorithms averaging simulation runs",
    "cli": "core storage data runs model_files experiments report flower",
}


def modules(package: Path) -> dict[str, Path]:
    """Dotted name inside the package -> file; a package is named after its folder."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n if n.removeprefix("wima.") in known else str(node.module) for n in whole]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (n.removeprefix("wima").strip(".") for n in names if n.split(".")[0] == "wima")


def room(module: str) -> str:
    return module.partition(".")[0]


def upward(package: Path) -> list[str]:
    """Imports that the table of rooms does not allow."""
    known = modules(package)
    return sorted(
        f"{module} imports {target}"
        for module, path in known.items()
        if module not in ("", "__main__")  # the public names, and the command
        for target in imports(path, known)
        if room(target) != room(module) and room(target) not in ROOMS[room(module)].split()
    )


def ring(package: Path) -> list[str]:
    """Modules that import each other in a ring; empty if there is none."""
    known = modules(package)
    graph = {module: set(imports(path, known)) - {module} for module, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_between_rooms_point_down() -> None:
    assert upward(ROOT / "wima") == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert ring(ROOT / "wima") == []


def test_every_folder_is_a_room() -> None:
    folders = {p.name for p in (ROOT / "wima").iterdir() if (p / "__init__.py").exists()}
    assert folders == set(ROOMS)


def test_rooms_come_after_those_that_they_import() -> None:
    order = list(ROOMS)
    for name, allowed in ROOMS.items():
        assert all(order.index(other) < order.index(name) for other in allowed.split())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from wima.runs.launch import launch", "core.late imports runs.launch"),
        ("def f():\n    import wima.runs.launch", "core.late imports runs.launch"),
        ("from wima.core.late import x", ""),
        ("import os", ""),
    ],
)
def test_an_upward_import_is_found(line: str, found: str, tmp_path: Path) -> None:
    for module, text in {"core/late": line, "runs/launch": "launch = 1"}.items():
        path = tmp_path / "wima" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    assert upward(tmp_path / "wima") == ([found] if found else [])


def test_a_ring_is_found(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.py").write_text(f"import wima.{other}\n", encoding="utf-8")
    assert set(ring(tmp_path)) == {"a", "b", "c"}
