"""Selects which tensors of a module are averaged, by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from wima.core.errors import UsageError, check, unknown

Owners: TypeAlias = dict[str, tuple[nn.Module, str]]  # name -> its module and attribute


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DistributedDataParallel and DataParallel."""
    check(isinstance(model, nn.Module), f"Expected a torch module, got {type(model).__name__}.")
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def choose(module: nn.Module, parts: str | Sequence[str] | None, use_buffers: bool) -> Owners:
    """The tensors to average; a tied tensor has its first name."""
    names = _trained(module, use_buffers) if parts is None else _matching(module, parts)
    check(bool(names), f"There is nothing to average: {parts!r} has no floating-point tensor.")
    chosen: Owners = {}
    for name in names:
        prefix, _, key = name.rpartition(".")
        chosen[name] = module.get_submodule(prefix), key
    return chosen


def _trained(module: nn.Module, use_buffers: bool) -> list[str]:
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    check(bool(trained), "There is nothing to average: the model has no trainable parameter.")
    for name in trained:
        _check_floating(name, module.get_parameter(name))
    stored = module.state_dict()  # buffers that are not in it are constants
    floating = [n for n, b in module.named_buffers() if n in stored and b.is_floating_point()]
    return trained + (floating if use_buffers else [])


def _matching(module: nn.Module, parts: str | Sequence[str]) -> list[str]:
    patterns = [parts] if isinstance(parts, str) else list(parts)
    everything: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    everything |= dict(module.named_buffers(remove_duplicate=False))
    chosen: dict[int, str] = {}
    first = {id(tensor): name for name, tensor in reversed(everything.items())}
    for pattern in patterns:
        found = {n: t for n, t in everything.items() if _matches(n, pattern)}
        if not found:
            raise unknown("part", pattern, everything)
        chosen |= {id(t): first[id(t)] for t in found.values() if t.is_floating_point()}
    for name in chosen.values():
        _check_floating(name, everything[name])
    return [name for name in everything if name in set(chosen.values())]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")


def _check_floating(name: str, tensor: Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise UsageError(f"{name} has no shape yet: run one batch through the model first.")
    check(
        tensor.is_floating_point(), f"{name} is {tensor.dtype}; expected a floating-point tensor."
    )
