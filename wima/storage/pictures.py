"""Writing pictures next to a user's data; only pictures drawn by wima are replaced."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from wima.core.errors import check
from wima.storage.files import check_new, new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK = {"Software": "wima"}  # PNG metadata


def check_picture(path: Path, force: bool = False) -> None:
    """Refuse a name that does not end in .png, or a file that wima did not draw unless forced."""
    check(path.suffix.lower() == ".png", f"Pictures are PNG files: expected a .png, got {path}.")
    check(path.parent.is_dir(), f"Cannot write {path}: the folder {path.parent} does not exist.")
    check_new(path, force or _is_ours(path))


def save_picture(figure: Figure, path: Path, force: bool = False, dpi: int = 120) -> None:
    """Write the figure as a PNG, replacing one that wima drew; see `check_picture`."""
    check_picture(path, force)
    with new_file(path, force or _is_ours(path)) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # in names, if the font lacks it
        figure.savefig(draft, dpi=dpi, format="png", metadata=MARK)


def _is_ours(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return MARK.items() <= picture.info.items()
    except (OSError, ValueError, SyntaxError):  # Pillow raises SyntaxError for broken PNGs
        return False
