"""The window average of NumPy, torch or JAX arrays, alone or in nested containers.

Other libraries are never imported.  An array is anything that NumPy can read (`__array__`), and the
average is created with the array's own namespace (`__array_namespace__`, the array API standard).
"""

from collections.abc import Callable, Mapping, Sequence
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
        found: dict[str, Tensor | None] = {}
        _mapped(arrays, lambda path, leaf: found.setdefault(path, _tensor(path, leaf)))
        tensors = {path: tensor for path, tensor in found.items() if tensor is not None}
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
        means = self._ring.mean(window)
        return _mapped(
            self._newest, lambda path, leaf: _like(leaf, means[path]) if path in means else leaf
        )


def _mapped(tree: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """The tree with `change(path, leaf)` in place of its leaves; paths are like ['layers'][0]."""
    if isinstance(tree, Mapping):
        named = {key: _mapped(t, change, f"{path}[{key!r}]") for key, t in tree.items()}
        if not isinstance(tree, dict):
            return type(tree)(named)  # type: ignore[call-arg]
        twin = copy(tree)  # subclasses keep their other attributes
        twin.update(named)
        return twin
    if isinstance(tree, list | tuple):
        branches = [_mapped(branch, change, f"{path}[{n}]") for n, branch in enumerate(tree)]
        return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)
    return change(path, tree)


def _tensor(path: str, leaf: Any) -> Tensor | None:
    """A floating-point leaf as a tensor, which may share its memory; None for others."""
    if isinstance(leaf, float) and not isinstance(leaf, np.generic):
        return torch.tensor(leaf, dtype=torch.float64)
    if not isinstance(leaf, Tensor) and not (hasattr(leaf, "__array__") and hasattr(leaf, "dtype")):
        return None
    name, kind = path or "The array", getattr(leaf.dtype, "name", str(leaf.dtype))
    check("complex" not in kind, f"{name} is {kind}; average its real and imaginary parts.")
    if "float" not in kind:
        return None
    if isinstance(leaf, Tensor):
        return leaf.detach()
    array = np.asarray(leaf)
    if not array.flags.writeable or not array.flags.aligned or any(s < 0 for s in array.strides):
        array = array.copy()  # torch needs writable memory and no negative strides
    try:
        if kind == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        expected = "expected float16, bfloat16, float32 or float64"
        raise UsageError(f"{name} is {array.dtype}; {expected}.") from None


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
