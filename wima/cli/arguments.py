"""Arguments shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from click import Context, NoSuchOption
from typer.core import TyperCommand

from wima.core.errors import UsageError


def _presets(incomplete: str) -> list[str]:
    from wima.runs.settings import presets

    return presets()


Source = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A preset, or a .toml file.", autocompletion=_presets),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings to override.")
]
NewFolder = Annotated[Path | None, typer.Option(help="Output folder; must not exist.")]
ForcePicture = Annotated[
    bool, typer.Option("--force", help="Replace a picture that wima did not draw.")
]


class SettingsCommand(TyperCommand):
    """A command that takes settings; for --rounds 10, the error says to write rounds=10."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            from wima.runs.mistakes import as_setting
            from wima.runs.settings import NAMES

            name, value = error.option_name, None
            for text, following in zip(given, [*given[1:], "-"], strict=True):
                if text.partition("=")[0] == name:
                    value = text.partition("=")[2] or following
            missing = value is None or value.startswith("--") or value == "-"
            instead = as_setting(name, None if missing else value, NAMES)
            if instead is None:
                raise
            raise UsageError(instead) from None
