"""Arguments shared by several commands, and what typer needs for plain help."""

from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import click
from typer import Argument, Option, core

from wima.core.errors import UsageError


def _presets(incomplete: str) -> list[str]:
    from wima.runs.settings import presets

    return presets()


Source = Annotated[
    str,
    Argument(metavar="NAME", help="A preset, or a .toml file.", autocompletion=_presets),
]
Overrides = Annotated[
    list[str] | None, Argument(metavar="KEY=VALUE...", help="Settings to override.")
]
Paths = Annotated[list[Path], Argument(help="Run folders, or folders that contain them.")]
Metric = Annotated[str, Option(help="The metric to show.")]
Last = Annotated[int | None, Option(help="Number of last rounds to average.")]
Target = Annotated[float | None, Option(help="Count the rounds until this value, for example 0.8.")]
NewFolder = Annotated[Path | None, Option(help="Output folder; must not exist.")]
ForcePicture = Annotated[bool, Option("--force", help="Replace a picture that wima did not draw.")]


class SettingsCommand(core.TyperCommand):
    """A command that takes settings; for --rounds 10, the error says to write rounds=10."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from wima.runs import mistakes, settings

            name, value = error.option_name, None
            for word, following in zip(words, [*words[1:], "-"], strict=True):
                if word.partition("=")[0] == name:
                    value = word.partition("=")[2] or following
            missing = value is None or value.startswith("--") or value == "-"
            message = mistakes.as_setting(name, None if missing else value, settings.NAMES)
            if message is None:
                raise
            raise UsageError(message) from None


def patch_typer() -> None:
    """Print brackets without backslashes, show the help of arguments, and suggest commands once.

    For the old typer that Flower requires with a new click; no setting of typer does it.
    """
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
