"""A strategy's own state between rounds, such as its momentum, which Flower does not save.

That is every attribute whose value has changed since `averaged` was called.  Hyper-parameters do
not change: a restarted server uses those that it is given.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common import Parameters
from torch import Tensor

from wima.flower.arrays import NDArray, to_numpy
from wima.flower.averages.models import Arrays, log
from wima.storage.states import Json, decode, encode


class Kind(NamedTuple):
    """A type of value that can be saved: how to split it into parts and join them again."""

    name: str
    split: Callable[[Any], tuple[Any, ...]]
    join: Callable[..., Any]


def _split_array(array: NDArray) -> tuple[Any, ...]:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"an array of dtype {array.dtype} cannot be saved")
    return array.dtype.str, array.shape, array.tobytes()


KINDS: dict[type, Kind] = {
    list: Kind("list", tuple, lambda *parts: list(parts)),
    tuple: Kind("tuple", tuple, lambda *parts: parts),
    dict: Kind("dict", lambda d: tuple(d.items()), lambda *items: dict(items)),
    bytes: Kind(
        "bytes",
        lambda b: (torch.from_numpy(np.array(bytearray(b), np.uint8)),),
        lambda t: t.numpy().tobytes(),
    ),
    np.ndarray: Kind(
        "array",
        _split_array,
        lambda dtype, shape, data: np.ndarray(shape, dtype, bytearray(data)),
    ),
    np.generic: Kind("scalar", lambda x: (np.asarray(x),), lambda array: array[()]),
    ArrayRecord: Kind(
        "ArrayRecord",
        lambda record: tuple((name, to_numpy(array)) for name, array in record.items()),
        lambda *items: ArrayRecord({name: Array(array) for name, array in items}),
    ),
    Parameters: Kind("Parameters", lambda p: (p.tensors, p.tensor_type), Parameters),
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}


class StrategyMemory:
    """The changing attributes of a strategy and of those that it wraps, and its round.

    A restarted server decodes them at once but restores them in `begin`, because Flower's older
    strategies return and reset some attributes before the first round.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = weakref.ref(strategy)  # weak, because the strategy holds this object
        self._name = _name(strategy)
        self._before = {path: _digest(tree) for path, tree in _trees(strategy)[0].items()}
        self.done = 0  # the last round that was averaged
        self._offset: int | None = None  # rounds of earlier servers
        self.waiting: dict[str, Any] | None = None  # values to restore, by attribute

    def encode(self, tensors: dict[str, Tensor]) -> Json:
        """What changed, as JSON; its tensors are added to the dict."""
        trees, lost = _trees(self._strategy())
        changed = {
            path: encode(tree, f"strategy {path}", tensors, {})
            for path, tree in trees.items()
            if _digest(tree) != self._before.get(path)
        }
        return {"name": self._name, "round": self.done, "changed": changed, "lost": lost}

    def decode(self, saved: Json, tensor: Callable[[str], Tensor]) -> None:
        """Read what `encode` wrote; warns about what was not saved."""
        if saved["name"] != self._name:
            log.warning(
                "The saved strategy is %s: %s starts without its state.", saved["name"], self._name
            )
            return
        for path in saved["lost"]:
            log.warning(
                "%s of %s could not be saved: it starts from its initial value.", path, self._name
            )
        trees = {path: decode(json, None, tensor, {}) for path, json in saved["changed"].items()}
        self.waiting = {path: _value(tree) for path, tree in trees.items()}
        self.done = saved["round"]

    def begin(self, start: Arrays, newest: Arrays) -> None:
        """Restore what was read, if the run starts from the newest saved model."""
        values, self.waiting = self.waiting or {}, None
        same = start.keys() == newest.keys()
        if not same or any(not np.array_equal(start[name], newest[name]) for name in newest):
            self.done = 0
            log.warning(
                "The run does not start from the newest model, averaging.models()['plain']: "
                "%s starts without its saved state.",
                self._name,
            )
            return
        for path, value in values.items():
            owner = self._strategy()
            *wrappers, name = path.split(".")
            for attribute in wrappers:
                owner = getattr(owner, attribute)
            setattr(owner, name, value)

    def round(self, t: int) -> int:
        """The number of round t across restarts, after which Flower counts from 1 again."""
        if self._offset is None:
            self._offset = self.done if t <= self.done else 0
        return t + self._offset


def _inside(strategy: Any) -> Any:
    """The strategy that this one wraps, as Flower's wrappers do; None if there is none."""
    inside = getattr(strategy, "strategy", None)
    return inside if hasattr(inside, "__dict__") else None


def _name(strategy: Any) -> str:
    inside, own = _inside(strategy), type(strategy).__name__
    return own if inside is None else f"{own}({_name(inside)})"


def _trees(strategy: Any) -> tuple[dict[str, Any], list[str]]:
    """The attributes that can be saved, by path, and the paths of the others."""
    found, lost, inside = {}, [], _inside(strategy)
    for name, value in vars(strategy).items():
        code = inspect.isroutine(value) or isinstance(value, type | ModuleType | partial)
        if name == "averaging" or code or (name == "strategy" and inside is not None):
            continue
        try:
            found[name] = _tree(value)
        except (TypeError, ValueError, RecursionError):
            lost.append(name)
    if inside is not None:
        trees, others = _trees(inside)
        found |= {f"strategy.{path}": tree for path, tree in trees.items()}
        lost += [f"strategy.{path}" for path in others]
    return found, lost


def _tree(value: Any) -> Any:
    """The value in the form that `wima.storage.states` saves; raises if there is none."""
    kind = KINDS.get(np.generic if isinstance(value, np.generic) else type(value))
    if kind is not None:
        return (kind.name, *map(_tree, kind.split(value)))
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        return value
    raise TypeError(f"{type(value).__name__} cannot be saved")


def _value(tree: Any) -> Any:
    """The value that `_tree` converted."""
    if not isinstance(tree, tuple):
        return tree
    name, *parts = tree
    return BY_NAME[name].join(*map(_value, parts))


def _digest(tree: Any) -> str:
    tensors: dict[str, Tensor] = {}
    found = hashlib.sha256(json.dumps(encode(tree, "", tensors, {})).encode())
    for tensor in tensors.values():
        found.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
