"""Files and folders that are complete or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from wima.core.errors import RunError, check

DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.(new|old)")  # the names of drafts, and of what they replace


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def cannot_write(path: Path, error: Exception, kind: type[Exception] = RunError) -> Exception:
    reason = getattr(error, "strerror", None) or str(error)
    return kind(f"Cannot write {path}: {reason}.")


@contextlib.contextmanager
def written(
    path: Path, *, folder: bool = False, over: bool = False, kind: type[Exception] = RunError
) -> Iterator[Path]:
    """An empty draft beside `path`, a file or a folder, for the block to fill.

    When the block ends well, the draft is synced and takes the name `path`; else it is removed.  A
    file replaces one of that name, a folder only with `over`.  What prevents writing is raised as
    `kind`, before anything is computed if possible.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        make_folder(path.parent)
        draft.mkdir() if folder else draft.touch(exist_ok=False)
        yield draft
        for part in (*draft.rglob("*"), draft) if folder else (draft,):
            sync(part)
        _rename(draft, path, over)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error, kind) from error
    finally:
        _remove(draft)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there; their names are on the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _rename(draft: Path, path: Path, over: bool) -> None:
    """Give the draft its name; a folder that had it is removed only afterwards."""
    if not (over and path.is_dir()):
        draft.rename(path)
        return
    old = draft.with_suffix(".old")
    path.rename(old)
    try:
        draft.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def drafts_of(path: Path) -> list[Path]:
    """The drafts of a file or folder, also those of processes that were killed."""
    found = [draft for draft in path.parent.glob(".*") if DRAFT.fullmatch(draft.name)]
    return [draft for draft in found if draft.name[1 : -len(".01234567.new")] == path.name]


def remove_drafts(folder: Path) -> None:
    """Remove what `written` left behind in processes that were killed; nobody else is writing."""
    for path in folder.glob(".*"):
        if DRAFT.fullmatch(path.name):
            _remove(path)


def replace_text(path: Path, text: str, kind: type[Exception] = RunError) -> None:
    """Write a text file, in place of what was there."""
    with written(path, kind=kind) as draft:
        draft.write_text(text, encoding="utf-8")


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it may be replaced."""
    check(not path.is_dir(), f"{path} is a folder; expected the name of a file to write.")
    taken = os.path.lexists(path) and not force
    check(not taken, f"{path} exists already; choose another name, or replace it with --force.")


def check_place(folder: Path, marker: str, kind: str, force: bool) -> None:
    """Refuse a folder that exists, unless it has our marker and may be replaced."""
    if os.path.lexists(folder):
        ours = (folder / marker).is_file()
        check(ours, f"{folder} exists and is no {kind}; choose another with --out.")
        hint = "replace it with --force, or choose another"
        check(force, f"The {kind} {folder} exists already; {hint}.")


@contextlib.contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[Path]:
    """A draft of a file that a user asked for, in a folder that exists; see `written`."""
    try:
        check_new(path, force)
    except OSError as error:  # a name that no file can have
        raise cannot_write(path, error) from error
    if not path.parent.is_dir():
        raise RunError(f"Cannot write {path}: there is no folder {path.parent}.")
    with written(path) as draft:
        yield draft
        check_new(path, force)
