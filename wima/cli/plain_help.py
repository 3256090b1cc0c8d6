"""Mends typer's plain help and messages, where Flower holds typer back and click is newer."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from typer import core


def mend() -> None:
    """Print no backslash before brackets, the help of arguments, and suggestions once."""
    core.HAS_RICH = False  # typer escapes brackets for rich even where rich is off
    init = core.TyperArgument.__init__

    @wraps(init)
    def keep_help(self: core.TyperArgument, **options: Any) -> None:
        init(self, **options)
        self.help = options.get("help")  # which click from 8.5 on replaces by its own

    core.TyperArgument.__init__ = keep_help  # type: ignore[method-assign]
    # Both list the arguments; typer's list is the one that older versions of click have too.
    setattr(core.TyperCommand, "format_arguments", lambda *_: None)  # noqa: B010
    if hasattr(click.exceptions, "NoSuchCommand"):  # it suggests a command; typer would again
        del core.TyperGroup.resolve_command
