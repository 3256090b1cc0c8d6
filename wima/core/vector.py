"""A model is one flat vector.

`Flat(module)` lays the module's numbers out in one buffer,

    w = [ trained parameters | the rest: frozen parameters and floating-point buffers ]

and its gradients in a second one, and turns the module's tensors into views of them.  Writing `w`
changes the model; `backward()` writes the gradient vector.  Integer buffers are counters, which
cannot be averaged, so they are not part of the vector.
"""

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from threading import RLock
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from wima.core.errors import UsageError, check

Vector: TypeAlias = Tensor  # one-dimensional, floating-point


@dataclass(frozen=True)
class Layout:
    """The position of each named tensor in the vector."""

    slices: dict[str, slice]
    shapes: dict[str, tuple[int, ...]]
    trained: int  # length of the part that SGD updates; the rest follows it
    classifier: tuple[str, ...] = ()  # names of the last linear layer's tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The layout of the tensors, one after another."""
        slices, shapes, start = {}, {}, 0
        for name, tensor in tensors.items():
            shapes[name] = tuple(tensor.shape)
            slices[name] = slice(start, start + prod(tensor.shape))
            start = slices[name].stop
        return cls(slices, shapes, start)

    @property
    def size(self) -> int:
        """The length of the vector."""
        return max((s.stop for s in self.slices.values()), default=0)

    def view(self, w: Vector, name: str) -> Tensor:
        """A view of the named tensor in a vector, in its shape."""
        return w[self.slices[name]].view(self.shapes[name])

    def unflatten(self, w: Vector) -> dict[str, Tensor]:
        """Name -> tensor, as for `load_state_dict`, without integer buffers."""
        return {name: self.view(w, name) for name in self.slices}

    def mask(self, part: str) -> Tensor:
        """A mask of the entries that belong to the part: all, classifier or features."""
        if part == "all":
            return torch.ones(self.size, dtype=torch.bool)
        check(part in PARTS, f"part must be one of {', '.join(PARTS)}, got {part!r}.")
        check(
            bool(self.classifier),
            f"part={part!r} needs a classifier, but the model has no torch.nn.Linear layer.",
        )
        classifier = torch.zeros(self.size, dtype=torch.bool)
        for name in self.classifier:
            classifier[self.slices[name]] = True
        return classifier if part == "classifier" else ~classifier


PARTS = ("all", "classifier", "features")


@dataclass(frozen=True)
class Flat:
    """A module bound to two flat buffers: `w`, its numbers, and `g`, the gradient."""

    module: nn.Module
    layout: Layout = field(init=False)
    w: Vector = field(init=False)
    g: Vector = field(init=False)

    def __post_init__(self) -> None:
        trained, rest = _tensors(self.module)
        tensors = trained | rest
        layout = replace(
            Layout.of(tensors),
            trained=sum(tensor.numel() for tensor in trained.values()),
            classifier=_classifier(self.module),
        )
        w = torch.cat([tensors[name].detach().reshape(-1) for name in layout.slices])
        g = torch.zeros(layout.trained, dtype=w.dtype, device=w.device)
        for name, tensor in tensors.items():
            tensor.data = layout.view(w, name)
        for name, tensor in trained.items():
            tensor.grad = g[layout.slices[name]].view(layout.shapes[name])
        for name, value in (("layout", layout), ("w", w), ("g", g)):
            object.__setattr__(self, name, value)


def _tensors(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The module's floating-point tensors by name: trained parameters, and the rest."""
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    rest = {name: p for name, p in parameters.items() if not p.requires_grad}
    rest |= {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    check(bool(trained), "The model has no trainable parameters.")
    _refuse(module, trained | rest)
    return trained, rest


def _refuse(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Raise an error that names any tensor that cannot be part of the vector."""
    for name, tensor in tensors.items():
        if nn.parameter.is_lazy(tensor):
            raise UsageError(f"{name} has no shape yet: run one batch through the model first.")
        check(tensor.is_floating_point(), f"{name} is {tensor.dtype}; expected floating point.")
    dtypes = {tensor.dtype: name for name, tensor in tensors.items()}
    if len(dtypes) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
        raise UsageError(f"All parameters and buffers must have the same dtype, but {found}.")
    # A tied weight, one Parameter under two names, is fine: it is listed once.
    spans = sorted((t.data_ptr(), t.nbytes, name) for name, t in tensors.items() if not t.is_meta)
    for (start, length, first), (following, _, second) in pairwise(spans):
        check(
            start + length <= following,
            f"{first} and {second} share memory but are not the same Parameter; tie weights by "
            "assigning the Parameter itself (b.weight = a.weight).",
        )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            check(
                layer.momentum is not None,
                f"{name} is a norm layer with momentum=None: its statistics depend on a counter "
                "that is not averaged. Give it a momentum, for example 0.1.",
            )


def _classifier(module: nn.Module) -> tuple[str, ...]:
    """The names of the last linear layer's tensors, as in `named_parameters`."""
    own: set[int] = set()
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            own = {id(p) for p in layer.parameters()}
    return tuple(name for name, p in module.named_parameters() if id(p) in own)


_turn = RLock()  # torch's generators and settings, and a task's module, serve all threads


def _first_turn() -> None:
    global _turn
    _turn = RLock()


def _last_turn() -> None:
    _turn.acquire()


if hasattr(os, "register_at_fork"):  # a child has none of the parent's other threads
    os.register_at_fork(after_in_child=_first_turn)


def finish_at_exit() -> None:
    """Python then ends after the round that a daemon thread computes: torch would abort in it.

    Repeat this after something has been made that is ended at exit, and that rounds need.
    """
    atexit.unregister(_last_turn)
    atexit.register(_last_turn)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute with gradients and without autocast, whatever surrounds this; threads take turns."""
    cast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    with _turn, torch.inference_mode(False), ExitStack() as stack:  # gradients are on again, too
        for device in cast:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute undisturbed, with one thread, and flush denormals to zero, as every engine does.

    With several threads, the bits of a sum depend on their number.  Denormals slow some CPUs down
    as training converges (no difference was measured on AMD EPYC).
    """
    with undisturbed():
        flushed = not bool(torch.tensor(1e-40, dtype=torch.float32) * 1)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(flushed)


def vectors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for branch in tree:
            yield from vectors(branch)


def vector_of(tensors: Mapping[str, Tensor], layout: Layout | None) -> Vector:
    """Tensors by name as one vector, the inverse of `by_name`; "w" is the vector itself."""
    names = layout.slices if layout else tensors
    check(names.keys() == tensors.keys(), "The tensors do not match the model in the settings.")
    return torch.cat([tensors[name].reshape(-1) for name in names])


def by_name(w: Vector, layout: Layout | None) -> dict[str, Tensor]:
    """The tensors in a vector, each with its own memory, as safetensors requires."""
    tensors = layout.unflatten(w) if layout else {"w": w}
    return {name: tensor.clone() for name, tensor in tensors.items()}
