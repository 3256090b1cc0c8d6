"""Where a progress bar moves."""

from __future__ import annotations

import io
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from rich.console import Console

from wima.core.progress import is_live


def test_bars_are_for_terminals_and_for_notebooks_with_widgets(monkeypatch):
    terminal, file = Console(force_terminal=True), Console(file=io.StringIO())
    notebook = Console(force_jupyter=True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert [is_live(console) for console in (terminal, file, notebook)] == [True, False, False]
    widgets = ModuleType("ipywidgets")
    widgets.__spec__ = ModuleSpec("ipywidgets", None)
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    assert [is_live(console) for console in (terminal, file, notebook)] == [True, False, True]
