"""The commands of `wima data`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from wima.cli.arguments import ForcePicture
from wima.core.text import echo

app = typer.Typer(help="List, fetch, verify, import and show data sets.", no_args_is_help=True)
Name = Annotated[str, Argument(metavar="NAME", help="A data set; see `wima data list`.")]


@app.command("list")
def list_() -> None:
    """List the data sets, and which of them are in the cache."""
    from wima.data.manage import listing

    _print(listing())


@app.command()
def fetch(name: Name) -> None:
    """Download a data set, check it, and prepare it."""
    from wima.data.cache import fetch_and_prepare
    from wima.data.load import public

    echo(f"{name}: ready in {fetch_and_prepare(public(name))}")


@app.command("import")
def import_(
    name: Name, path: Annotated[Path, Argument(help="The publisher's file or folder.")]
) -> None:
    """Prepare a data set from a local copy, without network access."""
    from wima.data.manage import import_data

    echo(f"{name}: ready in {import_data(name, path)}")


@app.command()
def verify(name: Name) -> None:
    """Verify the checksums of a data set in the cache."""
    from wima.data.manage import verify_data

    _print(verify_data(name))


@app.command()
def show(
    name: Name,
    alpha: Annotated[str | None, Option(help="Split: a number, or iid.")] = None,
    clients: Annotated[int | None, Option(help="Number of clients.")] = None,
    split: Annotated[str | None, Option(help="A split file.")] = None,
    out: Annotated[
        Path | None, Option(help="PNG of labels per client.  [default: NAME.png]")
    ] = None,
    force: ForcePicture = False,
) -> None:
    """Print and plot statistics and labels per client."""
    from wima.data.manage import show_data
    from wima.runs.settings import parse_override

    value = None if alpha is None else parse_override(f"alpha={alpha}")[1]
    picture = out or Path(f"{Path(name).stem}.png")
    _print(show_data(name, picture, force, alpha=value, clients=clients, split=split))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)
