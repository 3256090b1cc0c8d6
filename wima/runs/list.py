"""The available choices, for `wima list`; read from the source code, without importing it.

Importing the entries of a registry would import torch, which takes two seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from wima.core.errors import unknown
from wima.data.sets import SUMMARIES
from wima.simulation import engines as engine

PACKAGE = Path(__file__).parents[1]


class Thing(NamedTuple):
    """An entry of a registry: a dataclass, another class or a function."""

    docstring: str
    defaults: dict[str, Any]  # of fields, or of keyword arguments


class Found(NamedTuple):
    """The statement that defines a name, and its module."""

    module: str
    node: ast.stmt


def registry(module: str) -> dict[str, Thing]:
    """The entries of `BY_NAME` in a module of the package."""
    found = _find(module, "BY_NAME")
    assert isinstance(found.node, ast.AnnAssign) and isinstance(found.node.value, ast.Dict)
    pairs = zip(found.node.value.keys, found.node.value.values, strict=True)
    return {ast.literal_eval(key or ""): _thing(_find(module, _name(v))) for key, v in pairs}


def _thing(found: Found) -> Thing:
    node = found.node
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    pairs = _fields(found) if isinstance(node, ast.ClassDef) else _keywords(node)
    defaults = {name: _value(found.module, value) for name, value in pairs}
    return Thing(ast.get_docstring(node) or "", defaults)


def _fields(found: Found) -> Iterator[tuple[str, ast.expr]]:
    """The fields of a dataclass with defaults, those of its base classes first."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    for base in node.bases:
        yield from _fields(_find(found.module, _name(base)))
    for line in node.body:
        removed = isinstance(line, ast.AnnAssign) and "InitVar" in ast.unparse(line.annotation)
        if isinstance(line, ast.AnnAssign) and line.value is not None and not removed:
            yield _name(line.target), line.value


def _keywords(node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if value is not None:
            yield argument.arg, value


def _value(module: str, node: ast.expr) -> Any:
    """The value of a literal, or of a constant."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    found = _find(module, node.id)
    assert isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value is not None
    return _value(found.module, found.node.value)


def _find(module: str, name: str) -> Found:
    """Where a name in a module is defined: there, or in the module that it is imported from."""
    for node in _statements(module):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _find(str(node.module).removeprefix("wima."), name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(target, "id", "") for target in targets]
        if name in (getattr(node, "name", ""), *names):
            return Found(module, node)
    raise LookupError(f"{module} has no {name}")


@cache
def _statements(module: str) -> list[ast.stmt]:
    path = PACKAGE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")).body


def _name(node: ast.expr) -> str:
    assert isinstance(node, ast.Name)
    return node.id


def lines(kind: str | None = None) -> Iterator[str]:
    """One line per entry of a kind, or of all kinds with headings."""
    if kind is None:
        for name in KINDS:
            yield f"{name}:"
            yield from (f"  {line}" for line in KINDS[name]())
    elif kind in KINDS:
        yield from KINDS[kind]()
    else:
        raise unknown("kind", kind, KINDS)


def _registry(module: str) -> Iterator[str]:
    things = registry(module)
    width = max(len(name) for name in things)
    for name, thing in things.items():
        text = " ".join(thing.docstring.split("\n\n")[0].split()).removesuffix(".")
        given = ", ".join(f"{key}={value!r}" for key, value in thing.defaults.items())
        yield f"{name:<{width}}  {text}" + (f"  ({given})" if given else "")


def _presets() -> Iterator[str]:
    from wima.runs.settings import presets

    yield from presets()


def _settings() -> Iterator[str]:
    from wima.runs.settings import Settings

    for name, field in Settings.model_fields.items():
        default = field.default
        shown = [str(choice) for choice in default] if isinstance(default, list) else default
        yield f"{name} = {shown if shown is not None else '(not set)'}"


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "algorithms": lambda: _registry("algorithms"),
    "averagers": lambda: _registry("averaging"),
    "servers": lambda: _registry("algorithms.server_opt"),
    "privacy": lambda: _registry("engine.privacy"),
    "finetune": lambda: _registry("engine.exams"),
    "schedules": lambda: _registry("simulation.schedules"),
    "data": lambda: (f"{name:<14}{text}" for name, text in SUMMARIES.items()),
    "models": lambda: _registry("models"),
    "engines": lambda: iter(engine.NAMES),
    "trackers": lambda: _registry("runs.trackers"),
    "presets": _presets,
    "settings": _settings,
}
