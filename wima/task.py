"""A task is data plus a model, ready to train: four functions of a vector.

`make_task` builds one from a torch module; tests and theory build their own from plain functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wima.data.batches import Batch
from wima.data.federated import FederatedData
from wima.data.transform import Transform
from wima.errors import UsageError, check
from wima.objectives import Loss, Metric, accuracy
from wima.randomness import torch_seed
from wima.vector import Flat, Layout, Vector

Metrics: TypeAlias = dict[str, float]


class Task(NamedTuple):
    """What simulation needs to know of data and model.

    gradient(w, batch): of the mean loss, for the trained part of w (its first `trained` entries;
    all of it by default).  The rest (BatchNorm statistics) moves in place, as training moves it.
    """

    data: FederatedData
    init: Callable[[int], Vector]  # seed -> w
    gradient: Callable[[Vector, Batch], Vector]
    evaluate: Callable[[Vector], Metrics]
    trained: int | None = None
    layout: Layout | None = None  # where layers lie in w, for averages of a part
    workspace: Workspace | None = None  # the fast path: see `Workspace`


class Workspace:
    """A module bound to flat buffers, in which gradients are computed without copies.

    Write the model to `w`, call `gradient(batch)`, read `g`: both are overwritten by the next use.
    """

    def __init__(
        self, factory: Callable[[], nn.Module], loss: Loss, transform: Transform | None = None
    ) -> None:
        self._factory, self.loss, self.transform = factory, loss, transform
        self.module = factory()
        self.flat = Flat(self.module)
        self.w, self.g = self.flat.w, self.flat.g
        self._counters = [b for b in self.module.buffers() if not b.is_floating_point()]
        self.random = any(_is_random(layer) for layer in self.module.modules())

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker builds its own module: only how to make it travels, not the numbers.
        return Workspace, (self._factory, self.loss, self.transform)

    def gradient(self, batch: Batch) -> Vector:
        """The gradient of the mean loss at `self.w`, in `self.g`; statistics in `self.w` move."""
        self.module.train()
        self.g.zero_()
        if self.random:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed("layers", *batch.address))
                self._backward(batch)
        else:
            self._backward(batch)
        return self.g

    def _backward(self, batch: Batch) -> None:
        counters = [c.clone() for c in self._counters]  # counters must not carry over to others
        x = self.transform.train(batch.x, batch.address) if self.transform else batch.x
        loss = self.loss(self.module(x), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]
        for counter, before in zip(self._counters, counters, strict=True):
            counter.copy_(before)

    def gradient_at(self, w: Vector, batch: Batch) -> Vector:
        """`Task.gradient`: as above at any w, in memory of its own."""
        self.w.copy_(w)
        g = self.gradient(batch).clone()
        trained = self.flat.layout.trained
        w[trained:] = self.w[trained:]
        return g


def _is_random(layer: nn.Module) -> bool:
    """Whether a forward pass in training draws random numbers; unknown layers are taken to."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    if isinstance(layer, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return True
    recurrent = getattr(layer, "dropout", 0)
    return not type(layer).__module__.startswith(("torch.nn", "wima.models")) or bool(recurrent)


class Evaluation:
    """Loss and metrics of a vector on fixed examples, in evaluation mode."""

    def __init__(
        self,
        workspace: Workspace,
        x: Tensor,
        y: Tensor,
        loss: Loss,
        metrics: Mapping[str, Metric],
        batch_size: int,
    ) -> None:
        self._workspace, self._x, self._y = workspace, x, y
        self._measures: dict[str, Metric] = {**metrics, "loss": loss}
        self._batch_size = batch_size

    @torch.inference_mode()
    def __call__(self, w: Vector) -> Metrics:
        module, transform = self._workspace.module, self._workspace.transform
        self._workspace.w.copy_(w)
        module.eval()
        totals, counts = dict.fromkeys(self._measures, 0.0), dict.fromkeys(self._measures, 0)
        size = self._batch_size
        for x, y in zip(torch.split(self._x, size), torch.split(self._y, size), strict=True):
            output = module(transform.evaluate(x) if transform else x)
            for name, measure in self._measures.items():
                value = measure(output, y)
                total, count = value if isinstance(value, tuple) else (value * len(x), len(x))
                totals[name] += float(total)
                counts[name] += int(count)
        return {name: totals[name] / max(1, counts[name]) for name in totals}


class _Copies:
    """Makes copies of a given module, as a factory makes new ones."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module)

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self._module)


def make_task(
    model: nn.Module | Callable[[], nn.Module],
    data: FederatedData,
    test: tuple[Any, Any],
    *,
    loss: Loss = F.cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    transform: Transform | None = None,
    eval_batch_size: int = 1024,
) -> Task:
    """A task from a torch module, federated training data and test examples (x, y).

    A function that makes the model (`lambda: MLP(64)`, or its class) gives new initial weights for
    each seed; a module itself starts every run from its own weights.  `loss` and `metrics` take
    (output, y) and return the mean over the batch; the only metric by default is `accuracy`.
    `transform` turns stored examples into what the model takes.
    """
    factory = _Copies(model) if isinstance(model, nn.Module) else model
    workspace = Workspace(factory, loss, transform)
    x, y = (part if isinstance(part, Tensor) else torch.from_numpy(part) for part in test)
    check(len(x) == len(y), f"Test x and y must have one length, got {len(x)} and {len(y)}.")
    check(len(x) > 0, "There are no test examples.")
    measures = {"accuracy": accuracy} if metrics is None else metrics
    evaluate = Evaluation(workspace, x, y, loss, measures, eval_batch_size)
    _try(workspace, data, y, loss)
    layout = workspace.flat.layout

    def init(seed: int) -> Vector:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed("init", seed))
            return Flat(factory()).w.clone()

    return Task(data, init, workspace.gradient_at, evaluate, layout.trained, layout, workspace)


def _try(workspace: Workspace, data: FederatedData, y_test: Tensor, loss: Loss) -> None:
    """One example through the model, so that what does not fit is said before the run starts."""
    x, y = (torch.from_numpy(array[:1].copy()) for array in (data.x, data.y))
    workspace.module.eval()
    with torch.no_grad():
        try:
            output = workspace.module(workspace.transform.evaluate(x) if workspace.transform else x)
        except (RuntimeError, ValueError, TypeError) as error:
            shape = tuple(x.shape[1:])
            raise UsageError(
                f"The model cannot take an example of shape {shape} and dtype {x.dtype}: {error}"
            ) from error
    if loss is not F.cross_entropy or output.ndim != 2 or y.is_floating_point():
        return
    outputs = output.shape[1]
    for kind, labels in (("training", data.y), ("test", y_test.numpy())):
        low, high = int(labels.min()), int(labels.max())
        check(
            low >= 0 and high < outputs,
            f"The model has {outputs} outputs, so labels must be in 0 ... {outputs - 1}, but the "
            f"{kind} labels run from {low} to {high}.",
        )
