"""Files: written so that they are complete or absent, locked while a run writes, read in lines."""

import codecs
import contextlib
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from wima.core.errors import RunError, UsageError, check

DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{8}\.(new|old)")  # drafts, and the folders that they replace


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, which is read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def cannot_write(path: Path, error: Exception, kind: type[Exception] = RunError) -> Exception:
    reason = getattr(error, "strerror", None) or str(error)
    return kind(f"Cannot write {path}: {reason}.")


@contextlib.contextmanager
def written(
    path: Path, *, folder: bool = False, over: bool = False, kind: type[Exception] = RunError
) -> Iterator[Path]:
    """An empty draft next to `path`, a file or a folder, for the block to fill.

    If the block succeeds, the draft is synced and renamed to `path`; otherwise it is removed.  A
    file replaces an existing one; a folder does so only with `over`.  Errors in writing are raised
    as `kind`, if possible before anything is computed.
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
    """Create a folder and its missing parents, and sync their names to disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _rename(draft: Path, path: Path, over: bool) -> None:
    """Rename the draft to `path`; a folder that it replaces is removed only afterwards."""
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
    """The drafts of a file or folder, including those left by killed processes."""
    drafts = ((draft, DRAFT.fullmatch(draft.name)) for draft in path.parent.glob(".*"))
    return [draft for draft, match in drafts if match and match[1] == path.name]


def remove_drafts(folder: Path) -> None:
    """Remove drafts left by killed processes; no other process may be writing to the folder."""
    for path in folder.glob(".*"):
        if DRAFT.fullmatch(path.name):
            _remove(path)


def replace_text(path: Path, text: str, kind: type[Exception] = RunError) -> None:
    """Write a text file, replacing an existing one."""
    with written(path, kind=kind) as draft:
        draft.write_text(text, encoding="utf-8")


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that exists, unless it may be replaced."""
    check(not path.is_dir(), f"{path} is a folder; expected the name of a file to write.")
    taken = os.path.lexists(path) and not force
    check(not taken, f"{path} already exists; choose another name, or replace it with --force.")


def check_place(folder: Path, marker: str, kind: str, force: bool) -> None:
    """Refuse a folder that exists, unless it has our marker and may be replaced."""
    if os.path.lexists(folder):
        ours = (folder / marker).is_file()
        check(ours, f"{folder} exists and is not a {kind}; choose another with --out.")
        hint = "replace it with --force, or choose another"
        check(force, f"The {kind} {folder} already exists; {hint}.")


@contextlib.contextmanager
def new_file(path: Path, force: bool = False) -> Iterator[Path]:
    """A draft of a file that the user requested, in an existing folder; see `written`."""
    try:
        check_new(path, force)
    except OSError as error:  # an invalid file name
        raise cannot_write(path, error) from error
    if not path.parent.is_dir():
        raise RunError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    with written(path) as draft:
        yield draft
        check_new(path, force)


MARK = {"Software": "wima"}  # PNG metadata, which is this part of the file:
MARKED = b"\0\0\0\x0dtEXtSoftware\0wima"


def check_picture(path: Path, force: bool = False) -> None:
    """Refuse a name that does not end in .png, or a file that wima did not draw unless forced."""
    check(path.suffix.lower() == ".png", f"Pictures are PNG files: expected a .png, got {path}.")
    check(path.parent.is_dir(), f"Cannot write {path}: the folder {path.parent} does not exist.")
    is_ours = False
    with contextlib.suppress(OSError), path.open("rb") as file:
        is_ours = MARKED in file.read(1024)  # it comes before the pixels
    check_new(path, force or is_ours)


def save_picture(figure: Any, path: Path, force: bool = False, dpi: int = 120) -> None:
    """Write matplotlib's figure as a PNG, replacing one that wima drew; see `check_picture`."""
    check_picture(path, force)
    with written(path) as draft, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # in names, if the font lacks it
        figure.savefig(draft, dpi=dpi, format="png", metadata=MARK)


PATIENCE = 0.5  # seconds that a process waits for a lock: looking at a run holds it for a moment


class Locked(UsageError):  # noqa: N818  (it says how things are)
    """Another process holds the lock of a folder."""


class Lock:
    """Held by the process that works on a folder; the system releases it when the process ends."""

    def __init__(self, folder: Path, name: str = "lock") -> None:
        import fcntl  # here, because Windows has none

        path, end = folder / name, time.monotonic() + PATIENCE
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._close = weakref.finalize(self, os.close, number)
            self._unlock = partial(fcntl.flock, number, fcntl.LOCK_UN)
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                if time.monotonic() > end:
                    break
                time.sleep(0.005)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._close()
        raise Locked(f"Another process is working on {folder}; wait until it ends, or stop it.")

    def release(self) -> None:
        """Release the lock; forked processes, which share it, do not keep it."""
        if self._close.alive:
            self._unlock()
            self._close()


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock; writes nothing, also if there is no such folder."""
    import fcntl

    try:
        with (folder / "lock").open("rb") as file:  # shared: those who look exclude only a new run
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


TEXT = 2**25  # largest text file, in bytes
LINE, BLOCK = 2**24, 2**16  # bytes: the longest line, and what is read at once, backwards


def check_file(path: Path) -> None:
    """Raise `UsageError` unless it is a regular file: pipes and devices may be endless."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"Cannot read {path}: {reason}.") from None
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
    check(stat.S_ISREG(mode), f"Cannot read {path}: expected a file, got {kind}.")


def read_text(path: Path, most: int = TEXT) -> str:
    """The text of a regular file of at most `most` bytes."""
    check_file(path)
    size = path.stat().st_size
    check(size <= most, f"{path} has {size:,} bytes; expected at most {most:,}.")
    return path.read_text(encoding="utf-8-sig")


def complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file that end with a newline; an unfinished last line is dropped.

    A byte order mark and carriage returns, which Windows editors add, are removed.
    """
    check_file(path)
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while line := file.readline(LINE):
            check(len(line) < LINE, f"{path} has a line of more than {LINE:,} bytes.")
            if line.endswith(b"\n"):
                yield line.rstrip(b"\r\n") + b"\n"


def last_lines(path: Path) -> Iterator[bytes]:
    """The lines of `complete_lines` in reverse order; the file is read from its end."""
    check_file(path)
    with path.open("rb") as file:
        begin, rest, is_complete = file.seek(0, io.SEEK_END), b"", False
        while begin:
            begin, size = max(0, begin - BLOCK), min(begin, BLOCK)
            file.seek(begin)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            check(len(rest) < LINE, f"{path} has a line of more than {LINE:,} bytes.")
            if lines and not is_complete:
                lines.pop()
                is_complete = True
            yield from (line.rstrip(b"\r") + b"\n" for line in reversed(lines))
        if is_complete:
            yield rest.removeprefix(codecs.BOM_UTF8).rstrip(b"\r") + b"\n"
