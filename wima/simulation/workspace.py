"""Where gradients are computed: a module bound to flat buffers, on its device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from wima.core.errors import UsageError
from wima.core.randomness import torch_seed
from wima.core.vector import Flat, Vector, undisturbed
from wima.data.transform import Transform

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (output, y) -> the mean over the batch


class Batch(NamedTuple):
    """Examples, and the address of their randomness (dropout, augmentation)."""

    x: Tensor
    y: Tensor
    address: tuple[int, ...] = (0,)


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


class Workspace:
    """A module bound to flat buffers, in which gradients are computed without copies.

    Write the model to `w`, call `gradient(batch)`, read `g`; the next use overwrites both.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        loss: Loss,
        transform: Transform | None = None,
        device: str = "cpu",
    ) -> None:
        self.factory, self.loss, self.transform = factory, loss, transform
        self.device, self.default = find_device(device), torch.get_default_dtype()
        self.module = factory().to(self.device)
        self.flat = Flat(self.module)
        self.w, self.g = self.flat.w, self.flat.g
        self._parameters: list[Tensor] = [p for p in self.module.parameters() if p.requires_grad]
        self._views = [p.grad for p in self._parameters if p.grad is not None]
        self._counters = [b for b in self.module.buffers() if not b.is_floating_point()]
        self.random = any(_is_random(layer) for layer in self.module.modules())

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker builds its own module: only the recipe is sent, not the weights.
        return Workspace, (self.factory, self.loss, self.transform, str(self.device))

    @undisturbed()
    def module_at(self, w: Vector) -> nn.Module:
        """A new module with these weights, in evaluation mode."""
        with seeded(torch.device("cpu"), "init"):  # restores torch's generator
            module = self.factory().to(self.device)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in self.flat.layout.unflatten(w).items():
                tensors[name].copy_(value)
        return module.eval()

    def gradient(self, batch: Batch) -> Vector:
        """The gradient of the mean loss at `self.w`, in `self.g`; updates the statistics in w."""
        # Copying autograd's results costs less than zeroing `g` and letting autograd add to it.
        torch._foreach_copy_(self._views, self._gradients(batch))
        return self.g

    def descend(self, batch: Batch, lr: float, decay: float) -> None:
        """One step of plain SGD on `self.w`: the same bits as w.sub_(gradient + decay w, alpha=lr).

        Gradients are used where autograd left them; `g` is not touched.
        """
        gradients = self._gradients(batch)
        with torch.no_grad():
            if decay:
                gradients = list(torch._foreach_add(gradients, self._parameters, alpha=decay))
            torch._foreach_sub_(self._parameters, gradients, alpha=lr)

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """One gradient per trained parameter."""
        if not self.module.training:
            self.module.train()
        # Random layers draw at the batch's address.
        random = seeded(self.device, "layers", *batch.address) if self.random else nullcontext()
        with random:
            counters = [c.clone() for c in self._counters]  # must not affect other clients
            x = self.transform.train(batch.x, batch.address) if self.transform else batch.x
            loss = self.loss(self.module(x.to(self.device)), batch.y.to(self.device))
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for counter, before in zip(self._counters, counters, strict=True):
                counter.copy_(before)
        pairs = zip(gradients, self._parameters, strict=True)
        return [torch.zeros_like(p) if g is None else g for g, p in pairs]

    def gradient_at(self, w: Vector, batch: Batch) -> Vector:
        """`Task.gradient`: like `gradient`, at any w, returned as a new vector."""
        self.w.copy_(w)
        g = self.gradient(batch).clone()
        trained = self.flat.layout.trained
        w[trained:] = self.w[trained:]
        return g


def _is_random(layer: nn.Module) -> bool:
    """Whether a forward pass in training draws random numbers; assumed for unknown layers."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    recurrent = getattr(layer, "dropout", 0)
    return not type(layer).__module__.startswith(("torch.nn", "wima.models")) or bool(recurrent)
