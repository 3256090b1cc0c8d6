"""Where tensors live, and the generator of random layers there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wima.core.errors import UsageError
from wima.core.randomness import torch_seed


def find_device(name: str) -> torch.device:
    """The device of that name, such as cpu, cuda, cuda:1 or mps; raises if it is unavailable."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"device {name!r} cannot be used with torch {torch.__version__} here ({reason}); "
            "use device 'cpu', or install a torch that supports it."
        ) from None
    return device


@contextmanager
def seeded(device: torch.device, stream: str, *address: int) -> Iterator[None]:
    """Random layers draw at this address; torch's generators are restored afterwards.

    `torch.manual_seed` also seeds CUDA, even if there is none: 267 us instead of 4.
    """
    seed, generators = torch_seed(stream, *address), [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
