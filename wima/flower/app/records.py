"""Vectors and states as Flower records: arrays in NumPy's format, the rest as JSON; no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from wima.algorithms.base import State
from wima.flower.arrays import to_numpy
from wima.storage.states import decode, encode


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
