"""Fixes typer's plain help and messages for the old typer that Flower requires with a new click."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click
from typer import core


def mend() -> None:
    """Print brackets without backslashes, show the help of arguments, and suggest commands once."""
    core.HAS_RICH = False  # typer escapes brackets for rich even if rich is off
    init = core.TyperArgument.__init__

    @wraps(init)
    def keep_help(self: core.TyperArgument, **options: Any) -> None:
        init(self, **options)
        self.help = options.get("help")  # which click >= 8.5 replaces with its own

    core.TyperArgument.__init__ = keep_help  # type: ignore[method-assign]
    # Both typer and click >= 8.5 list the arguments; keep typer's list.
    setattr(core.TyperCommand, "format_arguments", lambda *_: None)  # noqa: B010
    if hasattr(click.exceptions, "NoSuchCommand"):  # click suggests commands; so does typer
        del core.TyperGroup.resolve_command
