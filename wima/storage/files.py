"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from wima.core.errors import RunError, check


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def cannot_write(path: Path, error: Exception) -> RunError:
    reason = getattr(error, "strerror", None) or str(error)
    return RunError(f"Cannot write {path}: {reason}.")


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it may be replaced."""
    check(not path.is_dir(), f"{path} is a folder; expected the name of a file to write.")
    taken = os.path.lexists(path) and not force
    check(not taken, f"{path} exists already; choose another name, or replace it with --force.")


@contextlib.contextmanager
def draft(path: Path, force: bool = False) -> Iterator[Path]:
    """An empty file beside `path`, to be filled; it gets that name if all goes well, else it goes.

    What is in the way of writing is told at once, before anything is computed.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        check_new(path, force)
        fresh.touch(exist_ok=False)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield fresh
        sync(fresh)
        check_new(path, force)
        fresh.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
