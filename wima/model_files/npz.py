"""Reads .npz files piece by piece; if pieces are read in order, every byte is read once."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from wima.core.errors import check
from wima.model_files.tensors import BY_NUMPY, Array, Spec, check_dtype, reading
from wima.storage.reading import HEADER, Header, open_archive, read_header

CHUNK = 2**18  # bytes unpacked at once
LOCAL = 30  # bytes before the name in a member's local header
MALFORMED = (OSError, ValueError, zipfile.BadZipFile, zlib.error)


class Stream:
    """The bytes of a member, in order; its checksum is verified after the last one.

    It holds no file, so it can continue after the file was closed and reopened.
    """

    def __init__(self, member: zipfile.ZipInfo, begin: int) -> None:
        self.member, self.position = member, 0
        self.next, self._end = begin, begin + member.compress_size  # offsets in the file
        self.packed = member.compress_type == zipfile.ZIP_DEFLATED
        self._unpack, self._input = zlib.decompressobj(-zlib.MAX_WBITS), b""
        self._sum: int | None = 0

    def read(self, file: IO[bytes], count: int) -> bytes:
        """The next bytes; fewer at the end."""
        count = min(count, self.member.file_size - self.position)
        data = (self._unpacked if self.packed else self._take)(file, count)
        self.position += len(data)
        if self._sum is not None:
            self._sum = zlib.crc32(data, self._sum)
            if self.position == self.member.file_size and self._sum != self.member.CRC:
                raise zipfile.BadZipFile(f"Bad CRC-32 for file {self.member.filename!r:.80}")
        return data

    def skip(self, file: IO[bytes], position: int) -> None:
        """Advance to a later position."""
        if not self.packed and position > self.position:
            self.next += position - self.position
            self.position, self._sum = position, None
        while self.position < position and self.read(file, min(CHUNK, position - self.position)):
            pass

    def _take(self, file: IO[bytes], count: int) -> bytes:
        file.seek(self.next)
        data = file.read(min(count, self._end - self.next))
        self.next += len(data)
        return data

    def _unpacked(self, file: IO[bytes], count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            packed = self._input or self._take(file, CHUNK)
            piece = self._unpack.decompress(packed, count - len(data))
            self._input = self._unpack.unconsumed_tail
            if not piece and (not packed or self._unpack.eof):
                break
            data += piece
        return bytes(data)


Streams: TypeAlias = dict[Path, Stream]  # by file: where reading continues


class NpzFile:
    """The arrays of an .npz file.  streams: from an earlier opening, to continue reading."""

    def __init__(self, path: Path, key: str | None = None, streams: Streams | None = None) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self._streams = {} if streams is None else streams
        self._columns: dict[str, Array] = {}  # arrays that are stored column by column
        with reading(path, MALFORMED), open_archive(path) as archive:
            self._members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
        self._file = path.open("rb")
        try:
            self._headers = {name: self._header(name) for name in self._members}
        except BaseException:
            self.close()
            raise
        self.tensors = {
            name: Spec(BY_NUMPY[header.dtype.newbyteorder("=")], header.shape)
            for name, header in self._headers.items()
        }

    def _header(self, name: str) -> Header:
        with reading(self.path, MALFORMED, f"array {name!r:.80}"):
            first = self._begin(name).read(self._file, HEADER)
            header = read_header(first, self._members[name].file_size)
        known = header.dtype.newbyteorder("=") in BY_NUMPY
        check_dtype(self.path, name, str(header.dtype), known)
        return header

    def _begin(self, name: str) -> Stream:
        member = self._members[name]
        self._file.seek(member.header_offset)
        local = self._file.read(LOCAL)
        if len(local) < LOCAL or local[:4] != b"PK\3\4":
            raise zipfile.BadZipFile(f"there is no member at offset {member.header_offset}")
        lengths = (int.from_bytes(local[at : at + 2], "little") for at in (26, 28))
        return Stream(member, member.header_offset + LOCAL + sum(lengths))

    def read(self, name: str, begin: int, end: int) -> Array:
        header = self._headers[name]
        with reading(self.path, MALFORMED):
            if header.by_columns and len(header.shape) > 1:
                numbers = self._by_columns(name, begin).flat[begin:end]
            else:
                first, last = (header.begin + n * header.dtype.itemsize for n in (begin, end))
                data = self._at(name, first).read(self._file, last - first)
                self._check_complete(len(data) == last - first)
                numbers = np.frombuffer(data, header.dtype)
        return numbers.astype(header.dtype.newbyteorder("="), copy=False)

    def _numbers(self, name: str) -> Stream:
        """A stream positioned after the header."""
        stream = self._begin(name)
        stream.read(self._file, self._headers[name].begin)
        return stream

    def _at(self, name: str, position: int) -> Stream:
        """The member's stream at this position; the current one is reused if possible."""
        stream = self._streams.get(self.path)
        there = stream is not None and stream.member.filename == self._members[name].filename
        if stream is None or not there or stream.position > position:
            stream = self._streams[self.path] = self._numbers(name)
        stream.skip(self._file, position)
        return stream

    def _by_columns(self, name: str, begin: int) -> Array:
        """An array stored column by column, memory-mapped: its rows are scattered over the file."""
        if name not in self._columns:
            header, stream = self._headers[name], self._numbers(name)
            where, packed = stream.next, stream.packed
            with tempfile.TemporaryFile() as unpacked:
                if packed or begin == 0:  # otherwise the checksum is already verified
                    while data := stream.read(self._file, CHUNK):
                        _ = unpacked.write(data) if packed else 0
                    self._check_complete(stream.position == stream.member.file_size)
                file, offset = (unpacked, 0) if packed else (self._file, where)
                mapped = np.memmap(file, header.dtype, "r", offset, header.shape, "F")
            self._columns[name] = np.asarray(mapped)
        return self._columns[name]

    def _check_complete(self, fact: bool) -> None:
        check(fact, f"{self.path} is truncated; expected a complete .npz file.")

    def close(self) -> None:
        self._columns = {}
        self._file.close()
