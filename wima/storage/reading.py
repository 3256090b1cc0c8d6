"""Reading text files: of a size that text can have, from either end, in whole lines."""

from __future__ import annotations

import codecs
import io
import stat
from collections.abc import Iterator
from pathlib import Path

from wima.core.errors import UsageError, check

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
