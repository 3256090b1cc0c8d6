"""Reads PyTorch files: tensors and plain containers are loaded, files with code are refused."""

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
from wima.model_files import tensors
from wima.storage.files import check_file

DTYPES = {getattr(torch, dtype.name): code for dtype, code in tensors.BY_NUMPY.items()}
DTYPES[torch.bfloat16] = "BF16"
# Common keys of weights that are saved together with other data.
USUAL = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")


class TorchFile:
    """The weights in a file written by `torch.save`, memory-mapped."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {"format": "pt"}
        content = load(path)
        weights = _at(content, where(path, content, key))
        self._weights = {n: value for n, value in weights.items() if isinstance(value, Tensor)}
        for name, tensor in self._weights.items():
            got = reprlib.repr(name)  # shortened: the name may be a deeply nested tuple
            check(isinstance(name, str), f"{path}: expected strings as tensor names, got {got}.")
            tensors.check_dtype(path, name, f"{tensor.dtype}, {tensor.layout}", _is_plain(tensor))
        # A tensor with stride 0 repeats its numbers and may have any size.
        tensors.check_unpacked(path, sum(tensor.nbytes for tensor in self._weights.values()))
        self.tensors: Mapping[str, tensors.Spec] = {
            n: tensors.Spec(DTYPES[tensor.dtype], tuple(tensor.shape))
            for n, tensor in self._weights.items()
        }

    def read(self, name: str, begin: int, end: int) -> tensors.Array:
        tensor = self._weights[name].detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.int16)
        if tensor.is_contiguous():
            numbers: tensors.Array = tensor.view(-1)[begin:end].numpy()
        else:  # for example transposed; `reshape` would copy the whole tensor for every piece
            numbers = tensor.numpy().flat[begin:end]
        return numbers.view(tensors.STORED[self.tensors[name].dtype])

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
    with tensors.reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch suggests an unsafe load
        mapped = zipfile.is_zipfile(path)  # files from old torch versions cannot be mapped
        if mapped:
            tensors.open_archive(path).close()  # checks sizes
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            refused = re.search(r"GLOBAL (\S+)", str(error))
            if refused is None:
                reason = str(error).split("WeightsUnpickler error: ")[-1].strip().partition("\n")[0]
                raise pickle.UnpicklingError(reason) from None
            raise UsageError(
                f"{path} is refused: loading it would call {refused.group(1)}, and such a file can "
                "run arbitrary code. Nothing was executed. Expected tensors in plain containers: "
                "save only model.state_dict()."
            ) from None


def where(path: Path, content: Any, key: str | None) -> tuple[str, ...]:
    """The path of keys to the weights: as given, or one of the usual keys."""
    check(isinstance(content, Mapping), f"{path}: expected a dict, got a {type(content).__name__}.")
    names = [f"{name:.80}" for name in content if isinstance(name, str)]
    contains = f"the file contains {', '.join(names[:12]) or 'nothing'}."
    if key is not None:
        keys = (key,) if key in content else tuple(key.split("."))
        check(_holds(content, keys), f"{path}: no tensors under --key {key}; {contains}")
        return keys
    usual = [(name,) for name in USUAL if _holds(content, (name,))]
    if not usual and _holds(content, ()):
        return ()
    unclear = f"{path}: cannot tell where the weights are; use --key; {contains}"
    check(len(usual) == 1, unclear)
    return usual[0]


def _holds(content: Any, keys: tuple[str, ...]) -> bool:
    """Whether the keys lead to a dict with tensors."""
    weights = _at(content, keys)
    return isinstance(weights, Mapping) and any(isinstance(v, Tensor) for v in weights.values())


def _at(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def replaced(path: Path, key: str | None, tensors: Mapping[str, Tensor]) -> Any:
    """The content of the file with its weights replaced and everything else unchanged."""
    content = load(path)
    keys = where(path, content, key)
    content = weights = copy.copy(content)
    for name in keys:
        weights[name] = copy.copy(weights[name])
        weights = weights[name]
    weights.update(tensors)
    return content
