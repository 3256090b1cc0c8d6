"""The notebooks run in a kernel and show what is stored in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.helpers.documents import NOTEBOOKS
from tests.helpers.notebooks import executed, outputs

pytestmark = pytest.mark.site

NAMES = [path.stem for path in NOTEBOOKS]
LARGEST = 100_000  # bytes
STYLE = re.compile("\x1b\\[\\d+m|†")
NUMBER = re.compile(r"[+−]?\d+\.\d+")
ACCURACY = re.compile(r"(\w+/)?(plain|wima\d+):?(?: accuracy)? (\d+\.\d+)")


def shown(notebook: Any) -> str:
    """The texts that cells print and return, but for warnings."""
    found = [o.get("text") or o["data"]["text/plain"] for o in outputs(notebook) if not is_err(o)]
    return STYLE.sub("", " ".join(" ".join(found).split()))


def is_err(output: Any) -> bool:
    return output.get("name") == "stderr"


@pytest.mark.slow  # the one on algorithms: nine runs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_shows_what_is_stored_in_it_and_averages_are_better(path, tmp_path):
    """Numbers may differ from machine to machine; words and the order of models do not."""
    stored, now = shown(nbformat.read(path, as_version=4)), shown(executed(path, tmp_path))
    assert words(now) == words(stored)
    found = {(who, model): float(value) for who, model, value in ACCURACY.findall(now)}
    for method in {who for who, _ in found}:
        plain, *averages = (value for (who, _), value in found.items() if who == method)
        assert max(averages) > plain


def words(text: str) -> list[str]:
    return re.sub(r"\s+", " ", NUMBER.sub("#", text)).split()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_stored_notebook_is_small_complete_and_has_no_warnings(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not any(is_err(o) or o.output_type == "error" for o in outputs(notebook))
    assert path.stat().st_size < LARGEST
