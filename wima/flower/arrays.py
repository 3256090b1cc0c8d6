"""Arrays and states as Flower records: NumPy's format for arrays, JSON for the rest; no pickle."""

import json
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.lib import format as npy
from torch import Tensor

from wima.algorithms.base import State
from wima.core.randomness import torch_seed
from wima.core.vector import Vector
from wima.storage.states import decode, encode

NDArray: TypeAlias = np.ndarray[Any, Any]
Arrays: TypeAlias = dict[str, NDArray]
log = logging.getLogger("flwr")  # the logger that Flower itself uses
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


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record."""
    return ArrayRecord({name: tensor.detach().cpu() for name, tensor in tensors.items()})


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a record."""
    return {name: torch.from_numpy(to_numpy(array)) for name, array in arrays.items()}


def pack(state: State) -> tuple[ArrayRecord, str]:
    """A state as its tensors and a JSON string."""
    tensors: dict[str, Tensor] = {}
    structure = encode(state, "state", tensors, {})
    return to_arrays(tensors), json.dumps(structure)


def unpack(arrays: ArrayRecord, text: str, like: State) -> State:
    """The state that `pack` packed; `like` is a state of the same type."""
    return decode(json.loads(text), like, to_tensors(arrays).__getitem__, {})


def entry(config: ConfigRecord, key: str, kind: type) -> Any:
    """A value of a record, of the expected type."""
    value = config[key]
    if type(value) is not kind:
        raise TypeError(f"{key} must be {kind.__name__}, got {value!r:.60}")
    return value


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """Name -> shape."""
    return {name: array.shape for name, array in arrays.items()}


def flatten(
    arrays: Arrays, names: Iterable[str], dtype: torch.dtype, out: Vector | None = None
) -> Vector:
    """The named arrays, concatenated; written to `out` if it is given."""
    parts = [arrays[name].ravel() for name in names]
    w = torch.empty(sum(map(len, parts)), dtype=dtype) if out is None else out
    np.concatenate(parts, out=w.numpy(), casting="unsafe")
    return w


def seed_all(stream: str, *address: int) -> None:
    """Seed the global generators at this address."""
    seed = torch_seed(stream, *address)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 70 times as long
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the global generators on exit, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])
