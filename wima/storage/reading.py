"""Reading untrusted files: sizes are checked before anything is allocated."""

from __future__ import annotations

import codecs
import io
import stat
import warnings
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wima.core.errors import UsageError, check

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TEXT = 2**25  # largest text file, in bytes
LINE, BLOCK = 2**24, 2**16  # bytes: the longest line, and the block size for reading backwards
UNPACKED, RATIO = 2**28, 100  # unpacked size limit: this many bytes, or RATIO times the file size
HEADER = 12 + 10_000  # bytes: numpy refuses longer headers
STORABLE = 2**63 - 1  # bytes; numpy and torch count them in 64 bits


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


def check_unpacked(path: Path, size: int) -> None:
    """Raise `UsageError` if a file unpacks to more than plausible data would (a zip bomb).

    Compression reduces floats to about a half, images and text to about a tenth.
    """
    most = max(UNPACKED, RATIO * path.stat().st_size)
    check(
        size <= most,
        f"{path} would unpack to {size:,} bytes, more than {RATIO} times its size; if it is yours, "
        "save it without compression.",
    )


class Header(NamedTuple):
    """The header of an .npy file."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    begin: int  # offset of the numbers, in bytes


def read_header(first: bytes, size: int) -> Header:
    """The header in the first `HEADER` bytes of an .npy file of `size` bytes.

    Raises `ValueError` if the file is too small for the declared array or holds Python objects.
    """
    from numpy.lib import format as npy  # imported here: it takes 0.1 s, and most callers read text

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    file = io.BytesIO(first)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, by_columns, dtype = readers[npy.read_magic(file)](file)
    except Exception as error:  # numpy can raise anything on damaged data
        raise ValueError(f"invalid .npy header ({type(error).__name__}: {error})") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    length = max(1, dtype.itemsize)
    storable = min(shape, default=0) >= 0 and prod(n or 1 for n in shape) * length <= STORABLE
    if not storable or file.tell() + prod(shape) * length > size:
        raise ValueError(f"it declares shape {shape} of {dtype}, but has {size:,} bytes")
    return Header(shape, by_columns, dtype, file.tell())


def file_header(path: Path) -> Header:
    """The header of an .npy file; see `read_header`."""
    check_file(path)
    with path.open("rb") as file:
        return read_header(file.read(HEADER), path.stat().st_size)


def read_array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """An array in an .npz file; raises `ValueError` if it is damaged."""
    from numpy.lib import format as npy

    try:
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as file:
            read_header(file.read(HEADER), member.file_size)
        with archive.open(member) as file:
            return npy.read_array(file, allow_pickle=False)
    except Exception as error:  # zipfile and numpy can raise anything on damaged data
        raise ValueError(f"{type(error).__name__}: {error}") from None


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip archive, such as an .npz file.

    Raises `BadZipFile` if its members cannot have the sizes that they declare.
    """
    check_file(path)
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile):
        raise
    except Exception as error:  # zipfile can raise anything on damaged data
        raise zipfile.BadZipFile(f"{type(error).__name__}: {error}") from None
    try:
        _check_members(path, archive.infolist())
    except BaseException:
        archive.close()
        raise
    return archive


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    size = path.stat().st_size
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED
        known = stored or member.compress_type == zipfile.ZIP_DEFLATED
        encrypted = member.flag_bits & 1
        fits = member.header_offset >= 0 and member.header_offset + member.compress_size <= size
        fits = fits and (member.file_size == member.compress_size or not stored)
        if not known or encrypted or not fits:
            raise zipfile.BadZipFile(f"{member.filename!r:.80} cannot be unpacked")
    check_unpacked(path, sum(member.file_size for member in members))
