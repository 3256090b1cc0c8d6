"""Reads PyTorch files: tensors and plain containers are loaded, files with code are refused."""

from __future__ import annotations

import copy
import pickle
import re
import reprlib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wima.core.errors import UsageError, check
from wima.model_files.tensors import (
    STORED,
    Array,
    Spec,
    check_dtype,
    check_unpacked,
    damaged,
    open_archive,
)
from wima.storage.files import check_file

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# Common keys of weights that are saved together with other data.
USUAL = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")


class TorchFile:
    """The weights in a file written by `torch.save`, memory-mapped."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        self.metadata = {"format": "pt"}
        content = load(path)
        found = _weights(content, where(path, content, key))
        self._weights = {name: value for name, value in found.items() if isinstance(value, Tensor)}
        for name, tensor in self._weights.items():
            got = reprlib.repr(name)  # shortened: the name may be a deeply nested tuple
            check(isinstance(name, str), f"{path}: expected strings as tensor names, got {got}.")
            check_dtype(path, name, f"{tensor.dtype}, {tensor.layout}", _is_plain(tensor))
        # A tensor with stride 0 repeats its numbers and may have any size.
        check_unpacked(path, sum(tensor.nbytes for tensor in self._weights.values()))
        self.tensors = {
            name: Spec(DTYPES[tensor.dtype], tuple(tensor.shape))
            for name, tensor in self._weights.items()
        }

    def read(self, name: str, begin: int, end: int) -> Array:
        tensor = self._weights[name].detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.int16)
        if tensor.is_contiguous():
            numbers: Array = tensor.view(-1)[begin:end].numpy()
        else:  # for example transposed; `reshape` would copy the whole tensor for every piece
            numbers = tensor.numpy().flat[begin:end]
        return numbers.view(STORED[self.tensors[name].dtype])

    def close(self) -> None:
        self._weights = {}  # the file is unmapped with its last tensor


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory holds its numbers: not sparse, not a lazy conjugate, not without data."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.dtype in DTYPES and not tensor.is_conj() and not tensor.is_neg()


def load(path: Path) -> Any:
    """The content of the file; tensors are read on first use."""
    check_file(path)
    try:
        mapped = zipfile.is_zipfile(path)  # files from old torch versions cannot be mapped
        if mapped:
            open_archive(path).close()  # checks sizes
        with warnings.catch_warnings():  # torch suggests an unsafe load
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is None:
            reason = str(error).split("WeightsUnpickler error: ")[-1].strip().partition("\n")[0]
            raise damaged(path, pickle.UnpicklingError(reason)) from None
        raise UsageError(
            f"{path} is refused: loading it would call {refused.group(1)}, and such a file can "
            "run arbitrary code. Nothing was executed. Expected tensors in plain containers: "
            "save only model.state_dict()."
        ) from None
    except UsageError:
        raise
    except Exception as error:  # torch can raise anything on damaged data
        raise damaged(path, error) from None


def where(path: Path, content: Any, key: str | None) -> tuple[str, ...]:
    """The path of keys to the weights: as given, or one of the usual keys."""
    check(isinstance(content, Mapping), f"{path}: expected a dict, got a {type(content).__name__}.")
    if key is not None:
        path_of_keys = (key,) if key in content else tuple(key.split("."))
        check(
            _holds(content, path_of_keys), f"{path}: no tensors under --key {key}; {_keys(content)}"
        )
        return path_of_keys
    usual = [(name,) for name in USUAL if _holds(content, (name,))]
    if not usual and _holds(content, ()):
        return ()
    check(
        len(usual) == 1, f"{path}: cannot tell where the weights are; use --key; {_keys(content)}"
    )
    return usual[0]


def _holds(content: Any, keys: tuple[str, ...]) -> bool:
    """Whether the keys lead to a dict with tensors."""
    weights = _weights(content, keys)
    return isinstance(weights, Mapping) and any(isinstance(v, Tensor) for v in weights.values())


def _weights(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _keys(content: Mapping[Any, Any]) -> str:
    keys = [key for key in content if isinstance(key, str)]
    return f"the file contains {', '.join(f'{key:.80}' for key in keys[:12]) or 'nothing'}."


def replaced(path: Path, key: str | None, tensors: Mapping[str, Tensor]) -> Any:
    """The content of the file with its weights replaced and everything else unchanged."""
    content = load(path)
    return _replace(content, where(path, content, key), tensors)


def _replace(content: Any, keys: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Any:
    changed = copy.copy(content)
    if keys:
        changed[keys[0]] = _replace(content[keys[0]], keys[1:], tensors)
    else:
        changed.update(tensors)
    return changed


def as_tensors(data: Array, specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    """Views of consecutive tensors in memory or in a mapped file."""
    tensors, begin = {}, 0
    for name, spec in specs.items():
        numbers = data[begin : begin + spec.nbytes].view(STORED[spec.dtype])
        # An empty tensor must not share memory with the next one: torch.save may refuse that.
        tensor = torch.from_numpy(numbers if spec.numel else numbers.copy())
        tensor = tensor.view(torch.bfloat16) if spec.dtype == "BF16" else tensor
        tensors[name] = tensor.reshape(spec.shape)
        begin += spec.nbytes
    return tensors
