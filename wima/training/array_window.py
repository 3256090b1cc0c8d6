"""The window average of NumPy, torch or JAX arrays, alone or in nested containers.

Other libraries are never imported.  An array is anything that NumPy can read (`__array__`), and the
average is created with the array's own namespace (`__array_namespace__`, the array API standard).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wima.core.errors import EQUAL, UsageError, check, check_count, check_equal_weights
from wima.training.past import TensorRing
from wima.training.window_average import check_windows


class ArrayWindow:
    """The mean of the last `window` values of an array, or of arrays in dicts, lists and tuples.

    Floating-point arrays and floats are averaged, each in its own dtype; everything else is as in
    the newest value.  every, dtype and folder are those of `WindowAverage`.

    Examples:
        >>> import numpy as np, wima
        >>> average = wima.ArrayWindow(window=2)
        >>> for value in (1.0, 2.0, 4.0):
        ...     average.update({"weights": np.full(3, value), "step": 7})
        >>> average.value()
        {'weights': array([3., 3., 3.]), 'step': 7}
    """

    def __init__(
        self,
        window: int | Sequence[int] = 100,
        *,
        every: int = 1,
        dtype: torch.dtype | None = None,
        folder: str | PathLike[str] | None = None,
        shape: str = EQUAL,  # removed
    ) -> None:
        check(
            str(window) != "auto",
            "window='auto' chooses W by gradients, and arrays have none: give a number.",
        )
        self.windows, self.every = check_windows(window), every
        check_count("every", every)
        check_equal_weights("shape", shape)
        self._dtype, self._folder = dtype, Path(folder) if folder else None
        self.calls = 0  # number of calls of update
        self._ring: TensorRing | None = None
        self._newest: Any = None

    def update(self, arrays: Any) -> None:
        """Add the current arrays to the window."""
        self.calls += 1
        if self.calls % self.every:
            return
        found = ((path, _tensor(path, leaf)) for path, leaf in _leaves(arrays))
        tensors = {path: tensor for path, tensor in found if tensor is not None}
        if self._ring is None:
            check(bool(tensors), f"There is no floating-point array in {type(arrays).__name__}.")
            length, dtype, folder = self.windows[-1], self._dtype, self._folder
            self._ring = TensorRing(tensors, length, dtype=dtype, folder=folder)
        missing = [path for path in self._ring.names if path not in tensors]
        new = [path for path in tensors if path not in self._ring.names]
        check(not missing, f"{', '.join(missing)} was in the first value and is now missing.")
        check(not new, f"{', '.join(new)} was not in the first value.")
        self._ring.push(tensors)
        self._newest = arrays

    def value(self, window: int | None = None) -> Any:
        """The average over the last `window` values (default: the largest window); new arrays."""
        if self._ring is None:
            raise UsageError(f"There is no value yet: call update() first (every={self.every}).")
        return _rebuild(self._newest, self._ring.mean(window))


def _children(tree: Any) -> Iterator[tuple[Any, Any]] | None:
    """Keys and children of a container; None for anything else."""
    if isinstance(tree, Mapping):
        return iter(tree.items())
    return iter(enumerate(tree)) if isinstance(tree, list | tuple) else None


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is not a container, with its path, such as ['layers'][0]."""
    children = _children(tree)
    if children is None:
        yield path, tree
        return
    for key, branch in children:
        yield from _leaves(branch, f"{path}[{key!r}]")


def _rebuild(tree: Any, means: Mapping[str, Tensor], path: str = "") -> Any:
    """The tree, with averages in place of the leaves that have one."""
    children = _children(tree)
    if children is None:
        return _like(tree, means[path]) if path in means else tree
    branches = {key: _rebuild(branch, means, f"{path}[{key!r}]") for key, branch in children}
    if isinstance(tree, dict):  # copied, so that subclasses keep their other attributes
        twin = copy(tree)
        twin.update(branches)
        return twin
    if isinstance(tree, Mapping):
        return type(tree)(branches)  # type: ignore[call-arg]
    if hasattr(tree, "_fields"):
        return type(tree)(*branches.values())
    return type(tree)(branches.values())


def _tensor(path: str, leaf: Any) -> Tensor | None:
    """A floating-point leaf as a tensor, which may share its memory; None for others."""
    if isinstance(leaf, float) and not isinstance(leaf, np.generic):
        return torch.tensor(leaf, dtype=torch.float64)
    if isinstance(leaf, Tensor):
        array, kind, floating = leaf, str(leaf.dtype), leaf.dtype.is_floating_point
    elif hasattr(leaf, "__array__") and hasattr(leaf, "dtype"):
        array, kind = leaf, str(leaf.dtype)
        floating = np.issubdtype(leaf.dtype, np.floating) or "float" in kind  # for bfloat16
    else:
        return None
    check(
        "complex" not in kind,
        f"{path or 'The array'} is {kind}; average its real and imaginary parts.",
    )
    if not floating:
        return None
    return array.detach() if isinstance(array, Tensor) else _from_numpy(path, np.asarray(array))


def _from_numpy(path: str, array: np.ndarray[Any, Any]) -> Tensor:
    if not array.flags.writeable or not array.flags.aligned or any(s < 0 for s in array.strides):
        array = array.copy()  # torch needs writable memory and no negative strides
    try:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        expected = "expected float16, bfloat16, float32 or float64"
        raise UsageError(f"{path or 'The array'} is {array.dtype}; {expected}.") from None


def _like(leaf: Any, mean: Tensor) -> Any:
    """The mean as an array of the leaf's type."""
    if isinstance(leaf, Tensor):
        return mean.to(leaf.device, copy=True)
    if isinstance(leaf, float) and not isinstance(leaf, np.generic):
        return mean.item()
    exact = mean.float() if mean.dtype == torch.bfloat16 else mean  # NumPy has no bfloat16
    array = exact.numpy().astype(leaf.dtype)
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    namespace = leaf.__array_namespace__() if hasattr(leaf, "__array_namespace__") else np
    return namespace.asarray(array)
