"""Arrays in NumPy's format that come from other machines."""

from __future__ import annotations

from io import BytesIO
from math import prod
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy

NDArray: TypeAlias = np.ndarray[Any, Any]
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def to_numpy(array: Array) -> NDArray:
    """A Flower array as a NumPy array; see `from_bytes`."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"expected an array in NumPy's format, got {array.stype!r:.60}")
    return from_bytes(array.data)


def from_bytes(data: bytes) -> NDArray:
    """The array in the bytes; `ValueError` if they do not match their header.

    NumPy allocates as much memory as a header asks for, so everything is checked first.
    """
    file = BytesIO(data)
    try:
        shape, _, dtype = HEADERS[npy.read_magic(file)](file)
    except Exception as error:  # the header parser raises many kinds of errors
        raise ValueError(f"the header of an array cannot be read: {error!r:.100}") from None
    if dtype.kind not in "biufc":
        raise ValueError(f"expected an array of numbers, got {dtype!s:.60}")
    needed, sent = prod(shape) * dtype.itemsize, len(data) - file.tell()
    if min(shape, default=0) < 0 or needed != sent:
        raise ValueError(f"expected {needed} bytes for {dtype} of shape {shape!s:.100}, got {sent}")
    return np.load(BytesIO(data), allow_pickle=False)  # type: ignore[no-any-return]
