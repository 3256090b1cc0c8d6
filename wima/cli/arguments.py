"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(metavar="NAME", help="A preset, or a .toml file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")
]
NewFolder = Annotated[Path | None, typer.Option(help="Folder to write; must not exist.")]
ForcePicture = Annotated[
    bool, typer.Option("--force", help="Replace a picture that wima did not draw.")
]
