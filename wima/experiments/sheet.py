"""A sheet: the runs of a table or figure, and the place of each in it.

A sheet is written next to its run folders, as `NAME.sheet.json`, when they are started; reports
read it.  Several cells may share a run, since a run evaluates many models.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from wima.core.errors import UsageError, check
from wima.runs.mistakes import first_mistake
from wima.storage.files import read_text, replace_text

SUFFIX = ".sheet.json"
Kind = Literal["table", "curves", "regret"]  # reports skip a regret, which a script shows


class Cell(NamedTuple):
    """The place of a run in a sheet."""

    row: str
    column: str
    seed: Annotated[int, Field(ge=0)]
    run: str  # the name of its folder, next to the sheet
    models: dict[str, str]  # heading -> name of the model in the run's records


class Sheet(NamedTuple):
    """A table or figure: rows and columns of runs, with a heading for each of their models."""

    name: str  # sota, window, ...
    title: str
    shown: str  # in the paper: "Table 2", or "" if it is ours
    kind: Kind
    scale: str
    note: str  # what the scale changes
    command: str
    last: Annotated[int, Field(gt=0)]  # rounds that numbers are averaged over
    rows: list[str]
    columns: list[str]
    headings: list[str]  # "plain" first
    cells: list[Cell]


SHEET = TypeAdapter(Sheet)


def own_sheet(name: str, title: str, last: int, **names: Any) -> Sheet:
    """A sheet that is not in the paper.  names: rows, columns, headings, cells, command."""
    empty = {"columns": [""], "cells": [], "command": "", "scale": "", "note": ""}
    return Sheet(name=name, title=title, shown="", kind="table", last=last, **(empty | names))


def write_sheet(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet atomically into the folder of its runs.

    Other cells of an existing sheet of the same name, such as other seeds, are kept if their runs
    exist.
    """
    path = folder / f"{sheet.name}{SUFFIX}"
    if path.exists():
        sheet = _joined(sheet, read_sheet(path), folder)
    content = {**sheet._asdict(), "cells": [cell._asdict() for cell in sheet.cells]}
    replace_text(path, json.dumps(content, indent=1) + "\n", UsageError)
    return path


def read_sheet(path: Path) -> Sheet:
    """Read a sheet, named by the windows that were used; raises `UsageError` if it is damaged."""
    try:
        sheet = SHEET.validate_python(json.loads(read_text(path)), strict=True)
        for cell in sheet.cells:
            place = cell.row in sheet.rows and cell.column in sheet.columns
            check(place, f"the row or column of {cell} is missing")
            check(Path(cell.run).name == cell.run, f"invalid run name {cell.run!r}")
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid sheet: {first_mistake(error)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a valid sheet: {error}") from None
    return with_used_windows(sheet)


def with_used_windows(sheet: Sheet) -> Sheet:
    """The sheet of a scale, with rows and headings named by the windows that were used.

    In tables of the paper, whose numbers are shown next to ours, the paper's windows are appended.
    """
    if not sheet.scale:
        return sheet
    rows: dict[str, set[str]] = {}
    headings: dict[str, set[str]] = {}
    for cell in sheet.cells:
        rows.setdefault(cell.row, set()).update(m for m in cell.models.values() if m != "plain")
        for heading, model in cell.models.items():
            headings.setdefault(heading, set()).add(model)
    row_names = {label: used_label(label, models) for label, models in rows.items()}
    row_names = row_names if sheet.shown else own_labels(row_names)
    name = used_label if sheet.scale == "paper" else sized_label
    names = {label: name(label, models) for label, models in headings.items()}
    cells = [
        cell._replace(
            row=row_names[cell.row], models={names[h]: model for h, model in cell.models.items()}
        )
        for cell in sheet.cells
    ]
    return sheet._replace(
        rows=[row_names.get(label, label) for label in sheet.rows],
        headings=[names.get(label, label) for label in sheet.headings],
        cells=cells,
    )


def _joined(new: Sheet, old: Sheet, folder: Path) -> Sheet:
    places = {(cell.row, cell.column, cell.seed) for cell in new.cells}
    more = [
        cell
        for cell in old.cells
        if (cell.row, cell.column, cell.seed) not in places and (folder / cell.run).exists()
    ]
    return new._replace(
        rows=list(dict.fromkeys([*new.rows, *(cell.row for cell in more)])),
        columns=list(dict.fromkeys([*new.columns, *(cell.column for cell in more)])),
        headings=list(dict.fromkeys([*new.headings, *(h for cell in more for h in cell.models)])),
        cells=[*new.cells, *more],
    )


# Endings of names with the paper's lengths.
ENDING = re.compile(r"W = (\d{1,9})$|every (\d{1,9})th of (\d{1,9})$")
USED = re.compile(r"W = \d+ \(paper: (\d+)\)$")
WIMA = "WIMA"  # the paper's name for its average
ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def used_label(label: str, models: Iterable[str]) -> str:
    """For the model `wima20`, `W = 100` becomes `W = 20 (paper: 100)`; others are unchanged."""
    lengths = {_lengths(model) for model in models}
    found = ENDING.search(label)
    if found is None or len(lengths) != 1:
        return label
    window, every = lengths.pop()
    own, step, whole = found.groups()
    paper = own or whole
    if window is None or window == int(paper):
        return label
    used = f"W = {window}" if own else f"every {ORDINALS.get(every, f'{every}th')} of {window}"
    printed = paper if own else f"{step}th of {paper}"
    return f"{label[: found.start()]}{used} (paper: {printed})"


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels without the paper's windows, unless two would become the same."""
    short = {old: re.sub(r" \(paper: .*\)$", "", new) for old, new in labels.items()}
    return short if len(set(short.values())) == len(short) else dict(labels)


def sized_label(label: str, models: Iterable[str]) -> str:
    """Like `used_label`; for the model `wima20`, `WIMA` becomes `WIMA, W = 20`."""
    models = set(models)
    sole = re.fullmatch(r"wima(\d{1,9})", "".join(models)) if label == WIMA else None
    return f"{WIMA}, W = {sole[1]}" if sole else used_label(label, models)


def paper_label(label: str) -> str:
    """The paper's name for a label with the window that was used."""
    return WIMA if re.fullmatch(rf"{WIMA}, W = \d+", label) else USED.sub(r"W = \1", label)


def _lengths(model: str) -> tuple[int | None, int]:
    """How many rounds a model's average spans, and the step between the models it uses."""
    if wima := re.fullmatch(r"wima(\d{1,9})", model):
        return int(wima[1]), 1
    if lawa := re.fullmatch(r"lawa(\d{1,9})x(\d{1,9})", model):
        return int(lawa[1]) * int(lawa[2]), int(lawa[2])
    if ema := re.fullmatch(r"ema(0\.\d{1,9})", model):
        return round((1 + float(ema[1])) / (1 - float(ema[1]))), 1
    return None, 1


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
