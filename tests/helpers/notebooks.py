"""Notebooks in a real kernel.  `python -m tests.helpers.notebooks` stores what they show."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.helpers.commands import environment
from tests.helpers.documents import NOTEBOOKS
from tests.helpers.paths import ROOT

LIMIT = 120  # seconds for a cell


def executed(path: Path, folder: Path) -> Any:
    """The notebook after its cells ran in a folder; a cell that fails raises an error."""
    notebook = nbformat.read(path, as_version=4)
    around = environment(IPYTHONDIR=str(folder / "ipython"), FLWR_TELEMETRY_ENABLED="0")
    client = NotebookClient(notebook, timeout=LIMIT, record_timing=False)
    client.execute(cwd=str(folder), env=around)
    return notebook


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def store() -> None:
    """Execute all notebooks and write their outputs into them, without warnings."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        for cell in notebook.cells:
            shown = cell.get("outputs", [])
            cell.update(
                {"outputs": [o for o in shown if o.get("name") != "stderr"]} if shown else {}
            )
        notebook.metadata.language_info = {"name": "python"}  # else it names the version
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {os.path.getsize(path) / 1e3:.0f} kB")


if __name__ == "__main__":
    store()
