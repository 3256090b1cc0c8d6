"""Mends typer's plain help, where Flower holds typer back and click is newer."""

from __future__ import annotations

from functools import wraps
from typing import Any

from typer import core


def mend() -> None:
    """Print no backslash before brackets, and the help of arguments."""
    core.HAS_RICH = False  # typer escapes brackets for rich even where rich is off
    init = core.TyperArgument.__init__

    @wraps(init)
    def keep_help(self: core.TyperArgument, **options: Any) -> None:
        init(self, **options)
        self.help = options.get("help")  # which click from 8.5 on replaces by its own

    core.TyperArgument.__init__ = keep_help  # type: ignore[method-assign]
