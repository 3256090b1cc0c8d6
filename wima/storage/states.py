"""States as tensors and JSON: how the state of algorithms, optimizers and averagers is stored.

A state is a tree of tuples whose leaves are tensors, numbers, strings and None.  A `Buffers`, which
holds buffers for later updates, is not stored.  The class of a named tuple is taken from a state of
the same kind (what `init` returns), so no class is ever looked up by a name in a file.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wima.core.errors import RunError, UsageError
from wima.storage.ring import Ring

Json: TypeAlias = Any
DTYPES = {str(d): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


class Buffers(list[Tensor]):
    """Buffers that a state keeps for later updates; restored empty."""


def encode(tree: Any, name: str, tensors: dict[str, Tensor], rings: dict[str, Ring]) -> Json:
    """The tree as JSON; its tensors and rings are added to the dicts, named `name`, `name.0`, ...

    A ring that is already in the dict keeps its name.
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    if isinstance(tree, Ring):
        name = next((known for known, ring in rings.items() if ring is tree), name)
        rings[name] = tree
        return {"ring": name}
    if isinstance(tree, torch.dtype):
        return {"dtype": str(tree)}
    if isinstance(tree, Buffers):
        return {"spare": None}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    if isinstance(tree, tuple):
        return {"tuple": [encode(b, f"{name}.{k}", tensors, rings) for k, b in enumerate(tree)]}
    raise UsageError(
        f"{name} is a {type(tree).__name__}, which a checkpoint cannot store; states must be "
        "tuples of vectors, numbers, strings and None."
    )


def decode(
    json: Json, like: Any, tensor: Callable[[str], Tensor], rings: Mapping[str, Ring]
) -> Any:
    """The tree that `encode` stored; `like` is a state of the same kind."""
    if not isinstance(json, dict) or len(json) != 1:
        raise RunError(f"invalid state {json!r:.60}")
    ((kind, content),) = json.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "ring":
        return rings[content]
    if kind == "dtype":
        return DTYPES[content]
    if kind == "spare":
        return Buffers()
    if kind == "value":
        return content
    newer = len(getattr(like, "_field_defaults", ()))  # fields that the file may not have yet
    alike = isinstance(like, tuple) and 0 <= len(like) - len(content) <= newer
    likes = like[: len(content)] if alike else (None,) * len(content)
    branches = [decode(b, same, tensor, rings) for b, same in zip(content, likes, strict=True)]
    return type(like)(*branches) if alike and hasattr(like, "_fields") else tuple(branches)


def size(tree: Any) -> int:
    """Bytes of the tensors in a state."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, Ring):
        return tree.rows.nbytes
    return sum(map(size, tree)) if isinstance(tree, tuple | Buffers) else 0
