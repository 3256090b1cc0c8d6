"""Pictures that commands draw beside a user's data: they replace only pictures of this package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from wima.core.errors import check
from wima.storage.files import check_new, new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = {"Software": "wima"}  # in the PNG's text


def check_picture(path: Path, force: bool = False) -> None:
    """Refuse a name that is no PNG's, or one of a file that was not drawn here, unless forced."""
    check(path.suffix.lower() == ".png", f"Pictures are PNG files: expected a .png, got {path}.")
    check(path.parent.is_dir(), f"Cannot write {path}: there is no folder {path.parent}.")
    check_new(path, force or _is_ours(path))


def save_picture(figure: Figure, path: Path, force: bool = False, dpi: int = 120) -> None:
    """Write the figure as a PNG, in place of one that was drawn here; see `check_picture`."""
    check_picture(path, force)
    with new_file(path, force or _is_ours(path)) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks
        figure.savefig(draft, dpi=dpi, format="png", metadata=MARK)


def _is_ours(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return MARK.items() <= picture.info.items()
    except (OSError, ValueError, SyntaxError):  # SyntaxError: what Pillow raises for broken PNGs
        return False
