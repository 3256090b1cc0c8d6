"""Tensors in files: dtype and shape, and conversion to float64 and back."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wima.core.errors import UsageError, check
from wima.storage.files import check_file

Array: TypeAlias = NDArray[Any]

# Dtypes have their safetensors names.  NumPy has no bfloat16: its bits are read as uint16.
UNPACKED, RATIO = 2**28, 100  # unpacked size limit: this many bytes, or RATIO times the file size
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
    "C64": np.dtype(np.complex64),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
BY_NUMPY = {stored: dtype for dtype, stored in STORED.items() if dtype != "BF16"}
FLOATING = ("F64", "F32", "F16", "BF16", "C64")


class Spec(NamedTuple):
    """A tensor's dtype and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * STORED[self.dtype].itemsize

    @property
    def floating(self) -> bool:
        """Whether it can be averaged; integers and bools cannot."""
        return self.dtype in FLOATING

    def zeros(self, count: int) -> Array:
        """An accumulator for `count` numbers of this dtype."""
        return np.zeros(count, np.complex128 if self.dtype == "C64" else np.float64)


def decode(stored: Array, dtype: str) -> Array:
    """Stored numbers as a dtype that NumPy can add."""
    if dtype == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def encode(x: Array, dtype: str) -> Array:
    """float64 numbers as they are stored; half precision is rounded via float32, as in torch."""
    if dtype == "BF16":
        return _bfloat16(x.astype(np.float32))
    if dtype == "F16":
        x = x.astype(np.float32)
    return x.astype(STORED[dtype])


def _bfloat16(x: Array) -> Array:
    """The bits of the nearest bfloat16, rounding half to even."""
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def check_dtype(path: Path, name: str, dtype: str, known: bool) -> None:
    check(
        known,
        f"{path}: tensor {name!r} has dtype {dtype}, which cannot be averaged; "
        f"expected one of {', '.join(STORED)}.",
    )


def damaged(path: Path, error: Exception, what: str = "") -> UsageError:
    if isinstance(error, OSError):
        return UsageError(f"Cannot read {path}: {error.strerror or error}.")
    about = f"{what}: " if what else ""
    return UsageError(
        f"{path} is damaged, or its format does not match its name: {about}"
        f"{type(error).__name__}: {error!s:.200}"
    )


@contextmanager
def reading(path: Path, errors: tuple[type[Exception], ...], what: str = "") -> Iterator[None]:
    """Convert these errors in the block with `damaged`."""
    try:
        yield
    except UsageError:  # already explains what is wrong
        raise
    except errors as error:
        raise damaged(path, error, what) from None


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
