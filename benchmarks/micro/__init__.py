"""Small measurements of wima alone; each module has `measure(turns)`, which gives a result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


def _measure(name: str, turns: int) -> dict[str, Any]:
    return import_module(f"benchmarks.micro.{name}").measure(turns)


MICRO: dict[str, Callable[[int], dict[str, Any]]] = {
    name: partial(_measure, name)
    for name in (
        "windows",
        "buckets",
        "clients",
        "startup",
        "evaluation",
        "detail",
        "storage",
        "average_files",
        "loop",
        "loop_auto",
        "report",
        "flower",
        "distributed",
    )
}


def micro_result(name: str, title: str, text: str, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """A result as `benchmarks.report` takes it."""
    from benchmarks.report import origin

    fields = {"name": name, "title": title, "text": text, "tables": tables}
    return {"kind": "micro", **fields, "origin": origin()}
