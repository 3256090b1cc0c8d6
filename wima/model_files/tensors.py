"""Tensors in files: dtypes, what all readers share, and those of safetensors and npz.

Files are read piece by piece.  They may come from anybody, so sizes are checked before anything is
allocated.
"""

import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import safe_open

from wima.core.errors import UsageError, check
from wima.storage.files import TEXT, check_file

Array: TypeAlias = NDArray[Any]

UNPACKED, RATIO = 2**28, 100  # unpacked size limit: this many bytes, or RATIO times the file size
# Dtypes have their safetensors names: F32 is NumPy's f4.
CODES = ("F64", "F32", "F16", "C64", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
STORED = {code: np.dtype(f"{code[0].lower()}{int(code[1:]) // 8}") for code in CODES}
# NumPy has no bfloat16: its bits are read as uint16.
STORED |= {"BF16": np.dtype(np.uint16), "BOOL": np.dtype(np.bool_)}
BY_NUMPY = {stored: dtype for dtype, stored in STORED.items() if dtype != "BF16"}
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # of .npy files
SUM = "about"  # key in the metadata of snapshots that version 0.1.0 wrote: sums of models
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


class SafetensorsFile(Checkpoint):
    """The tensors of a .safetensors file; safetensors checks its header."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        check_file(path)
        with reading(path):
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                most = f"expected at most {TEXT:,}"
                check(size <= TEXT, f"{path} is damaged: its header has {size:,} bytes; {most}.")
                header = json.loads(file.read(size))
            with safe_open(path, framework="numpy"):
                pass  # it raises if the header does not match the file
        self.metadata = header.pop("__metadata__", {})
        self._models = 1
        if SUM in self.metadata:  # a snapshot of version 0.1.0, which is read as a mean
            with reading(path, "not a snapshot: "):
                about = json.loads(self.metadata[SUM])
                self._models = max(1, int(about["last"]) - int(about["first"]) + 1)
        self.tensors, self._begin = {}, {}
        for name, about in header.items():
            check_dtype(path, name, about["dtype"], about["dtype"] in STORED)
            self.tensors[name] = Spec(about["dtype"], tuple(about["shape"]))
            self._begin[name] = 8 + size + about["data_offsets"][0]

    def read(self, name: str, begin: int, end: int) -> Array:
        stored = STORED[self.tensors[name].dtype]
        offset = self._begin[name] + begin * stored.itemsize
        with reading(self.path):
            numbers = np.fromfile(self.path, stored, end - begin, offset=offset)
        check(len(numbers) == end - begin, f"{self.path} was truncated while it was being read.")
        return numbers if self._models == 1 else numbers / self._models


class NpzFile(Checkpoint):
    """The arrays of an .npz file; each is read whole, and kept until the next one is read."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path, self.metadata = path, {}
        self._last: tuple[str, Array] | None = None  # the array that was read last
        self._archive = open_archive(path)
        self._members = {m.filename.removesuffix(".npy"): m for m in self._archive.infolist()}
        self.tensors = {name: self._spec(name) for name in self._members}

    def _spec(self, name: str) -> Spec:
        """From the header of an array, whose size must be that of the member."""
        member = self._members[name]
        with reading(self.path, f"array {name!r:.80}: "), self._archive.open(member) as file:
            with warnings.catch_warnings():  # about headers that Python 2 wrote
                warnings.simplefilter("ignore")
                shape, _, dtype = HEADERS[npy.read_magic(file)](file)
            native = dtype.newbyteorder("=")
            check_dtype(self.path, name, str(dtype), native in BY_NUMPY)
            # numpy and torch count bytes in 64 bits, also if one of the dimensions is 0.
            storable = min(shape, default=0) >= 0 and prod(n or 1 for n in shape) < 2**59
            if not storable or file.tell() + prod(shape) * dtype.itemsize > member.file_size:
                size = f"{member.file_size:,} bytes"
                raise ValueError(f"it declares shape {shape} of {dtype}, but has {size}")
        return Spec(BY_NUMPY[native], shape)

    def read(self, name: str, begin: int, end: int) -> Array:
        with reading(self.path, f"array {name!r:.80}: "):
            if self._last is None or self._last[0] != name:
                with self._archive.open(self._members[name]) as file:
                    self._last = name, npy.read_array(file, allow_pickle=False)
            numbers = self._last[1].flat[begin:end]
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._last = None
        self._archive.close()
