"""Tensors in files: dtype and shape, conversion to float64 and back, and what all readers share."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wima.core.errors import UsageError, check
from wima.storage.files import check_file

Array: TypeAlias = NDArray[Any]

UNPACKED, RATIO = 2**28, 100  # unpacked size limit: this many bytes, or RATIO times the file size
# Dtypes have their safetensors names: F32 is NumPy's f4.
CODES = ("F64", "F32", "F16", "C64", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
STORED = {code: np.dtype(f"{code[0].lower()}{int(code[1:]) // 8}") for code in CODES}
# NumPy has no bfloat16: its bits are read as uint16.
STORED |= {"BF16": np.dtype(np.uint16), "BOOL": np.dtype(np.bool_)}
BY_NUMPY = {stored: dtype for dtype, stored in STORED.items() if dtype != "BF16"}
FLOATING = ("F64", "F32", "F16", "BF16", "C64")  # what can be averaged


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
    if dtype == "BF16":  # the nearest, half to even
        bits = x.astype(np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)
    if dtype == "F16":
        x = x.astype(np.float32)
    return x.astype(STORED[dtype])


def check_dtype(path: Path, name: str, dtype: str, known: bool) -> None:
    check(
        known,
        f"{path}: tensor {name!r} has dtype {dtype}, which cannot be averaged; "
        f"expected one of {', '.join(STORED)}.",
    )


@contextmanager
def reading(path: Path, what: str = "") -> Iterator[None]:
    """Convert all errors in the block to a `UsageError`: readers may raise any on damaged files."""
    try:
        yield
    except UsageError:  # already explains what is wrong
        raise
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from None
    except Exception as error:
        raise UsageError(
            f"{path} is damaged, or its format does not match its name: {what}"
            f"{type(error).__name__}: {error!s:.200}"
        ) from None


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
    """Open a zip archive, such as an .npz file, if it does not unpack to too much."""
    check_file(path)
    with reading(path):
        archive = zipfile.ZipFile(path)
    for member in archive.infolist():
        known = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        check(known, f"{path} is damaged: {member.filename!r:.80} cannot be unpacked.")
    check_unpacked(path, sum(member.file_size for member in archive.infolist()))
    return archive


class Checkpoint(Protocol):
    """A file whose tensors can be read in part."""

    tensors: Mapping[str, Spec]
    metadata: Mapping[str, str]

    def read(self, name: str, begin: int, end: int) -> Array:
        """The numbers begin ... end - 1 of a tensor in row-major order, as stored."""
        ...

    def close(self) -> None:
        """Close what is open."""
