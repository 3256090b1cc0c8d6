"""The commands of `wima flower`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from wima.cli.arguments import NewFolder, Overrides, SettingsCommand, Source
from wima.core.errors import check

app = typer.Typer(help="Run on Flower: see docs/flower.md.", no_args_is_help=True)


@app.command(cls=SettingsCommand)
def run(
    source: Source,
    overrides: Overrides = None,
    out: NewFolder = None,
    robust: Annotated[bool, typer.Option(help="Ignore implausible updates.")] = True,
    round_seconds: Annotated[float, typer.Option(help="Timeout for the replies of a round.")] = 600,
) -> None:
    """Run a preset or settings file on Flower's simulation engine, one virtual node per client."""
    from wima.cli.tables import show
    from wima.runs.launch import default_path
    from wima.runs.settings import load_settings

    settings = load_settings(source, overrides or [])
    check(
        find_spec("flwr") is not None and find_spec("ray") is not None,
        "`wima flower run` needs Flower and its simulation engine: pip install 'wima[flower]'.",
    )
    from wima.flower.app.options import Options
    from wima.flower.app.server import simulate_on_flower

    path = out or default_path(settings)
    options = Options(robust=robust, round_seconds=round_seconds)
    show(simulate_on_flower(settings, path, options), path)
