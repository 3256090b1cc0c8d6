"""The paper's own numbers with their table, and a remark where the paper contradicts itself."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from wima.experiments.labels import paper_label

FILE = Path(__file__).parent / "printed.toml"


class Printed(NamedTuple):
    """A number from the paper, in percent; None where it prints N/A."""

    value: float | None
    where: str  # "Table 2"
    remark: str = ""


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def printed(sheet: str, row: str, column: str, heading: str) -> Printed | None:
    """The paper's number for a cell; None if it has none."""
    table = _tables().get(sheet, {})
    row, heading = paper_label(row), paper_label(heading)
    value = table.get("rows", {}).get(row, {}).get(column, {}).get(heading)
    if value is None:
        return None
    remark = table.get("remarks", {}).get(row, {}).get(column, "")
    return Printed(None if value == "N/A" else float(value), table["where"], remark)
