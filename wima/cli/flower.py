"""The commands of `wima flower`."""

from __future__ import annotations

from typing import Annotated

import typer

from wima.cli.arguments import NewFolder, Overrides, SettingsCommand, Source

app = typer.Typer(help="Run on Flower: see docs/flower.md.", no_args_is_help=True)


@app.command(cls=SettingsCommand)
def run(
    source: Source,
    overrides: Overrides = None,
    out: NewFolder = None,
    robust: Annotated[bool, typer.Option(help="Ignore implausible updates.")] = True,
    round_seconds: Annotated[float, typer.Option(help="Timeout for the replies of a round.")] = 600,
) -> None:
    """Run a preset or settings file as a Flower app on this machine, with one node per client."""
    from wima.cli.tables import show
    from wima.runs.folder import default_path
    from wima.runs.settings import load_settings

    settings = load_settings(source, overrides or [])
    from wima.flower.app.nodes import Options  # raises an error if Flower is not installed
    from wima.flower.app.server import simulate

    path = out or default_path(settings)
    options = Options(robust=robust, round_seconds=round_seconds)
    show(simulate(settings, path, options), path)
