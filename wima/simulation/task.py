"""A task is data plus a model, ready to train: four functions of a vector.

`make_task` builds one from a torch module; tests and theory build their own from plain functions.
"""

import hashlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wima.core.errors import RunError, UsageError, check
from wima.core.vector import Flat, Layout, Vector, undisturbed
from wima.data.federated import Array, FederatedData, as_array, as_tensor, hold_out, release
from wima.data.transform import Transform
from wima.simulation.measures.base import Evaluation, Metric, Metrics, accuracy
from wima.simulation.workspace import Batch, Loss, Workspace, seeded


class Task(NamedTuple):
    """What a simulation needs to know about data and model.

    gradient(w, batch): the gradient of the mean loss with respect to the trained part of w (its
    first `trained` entries; by default all).  The rest (BatchNorm statistics) is updated in place,
    as in training.
    """

    data: FederatedData
    init: Callable[[int], Vector]  # seed -> w
    gradient: Callable[[Vector, Batch], Vector]
    evaluate: Callable[[Vector], Metrics]
    trained: int | None = None
    layout: Layout | None = None  # where layers are in w, for averages of a part
    workspace: Workspace | None = None  # the fast path: see `Workspace`


@undisturbed()
def make_task(
    model: nn.Module | Callable[[], nn.Module],
    data: FederatedData,
    test: tuple[Any, Any],
    *,
    loss: Loss = F.cross_entropy,
    metrics: Mapping[str, Metric] | None = None,
    transform: Transform | None = None,
    eval_batch_size: int = 256,
    device: str = "cpu",
    test_clients: Any = None,
    client_test: float | None = None,
    data_seed: int = 0,
) -> Task:
    """A task from a torch module, federated training data and test examples (x, y).

    If `model` is a function that makes the model (`lambda: MLP(64)`, or its class), each seed has
    its own initial weights; if it is a module, every run starts from its weights.  `loss` and
    `metrics` take (output, y) and return the mean over the batch; by default, the only metric is
    `accuracy`.  `transform` turns stored examples into model inputs.  `device`: where the model and
    all vectors are stored; examples stay in main memory and are moved batch by batch.

    To evaluate models for each client, give `test_clients`, the client of each test example, -1 for
    none; or `client_test`, the share of each client's training examples to hold out instead.
    """
    check(
        callable(model),
        f"model must be a torch.nn.Module or a function that makes one, got {model!r:.80}.",
    )
    factory = partial(deepcopy, deepcopy(model)) if isinstance(model, nn.Module) else model
    workspace = Workspace(factory, loss, transform, device)
    x, y = (part if isinstance(part, Tensor) else as_tensor(part) for part in test)
    check(len(x) == len(y), f"Test x and y must have equal length, got {len(x)} and {len(y)}.")
    check(len(x) > 0, "There are no test examples.")
    measures = {"accuracy": accuracy} if metrics is None else metrics
    owners = None if test_clients is None else as_array(test_clients, "test_clients")
    if owners is not None:
        check(
            owners.shape == (len(x),) and owners.dtype.kind in "iu",
            "test_clients must hold the number of a client, or -1, for each test example; expected "
            f"{len(x)} integers, got {owners.dtype} of shape {owners.shape}.",
        )
        low, high = owners.min(), owners.max()
        check(
            low >= -1 and high < data.num_clients,
            f"test_clients must be in -1..{data.num_clients - 1}, got {low} to {high}.",
        )
    pooled = len(x)
    if client_test is not None:
        held = hold_out(data, client_test, data_seed)
        data, owners = held.train, np.append(np.full(len(x), -1), held.clients)
        x, y = (torch.cat([a, as_tensor(b)]) for a, b in ((x, held.x), (y, held.y)))
    evaluate = Evaluation(workspace, x, y, loss, measures, eval_batch_size, owners, pooled)
    _try(workspace, data, y, loss)
    layout = workspace.flat.layout

    def init(seed: int) -> Vector:
        with seeded(torch.device("cpu"), "init", seed):  # the same weights on every device
            return Flat(factory()).w.to(workspace.device, copy=True)

    return Task(data, init, workspace.gradient_at, evaluate, layout.trained, layout, workspace)


def _try(workspace: Workspace, data: FederatedData, y_test: Tensor, loss: Loss) -> None:
    """Run one example through the model, so that a mismatch is reported before the run starts."""
    x, y = (torch.from_numpy(array[:1].copy()) for array in (data.x, data.y))
    workspace.module.eval()
    with torch.no_grad():
        try:
            x = workspace.transform.evaluate(x) if workspace.transform else x
            output = workspace.module(x.to(workspace.device))
        except RunError:  # the example itself cannot be read
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            example = f"an example of shape {tuple(x.shape[1:])} and dtype {x.dtype}"
            raise UsageError(f"The model cannot take {example}: {error}") from error
    if loss is not F.cross_entropy or output.ndim != 2 or y.is_floating_point():
        return
    outputs = output.shape[1]
    for kind, labels in (("training", data.y), ("test", y_test.numpy())):
        low, high = int(labels.min()), int(labels.max())
        release(labels)
        check(
            low >= 0 and high < outputs,
            f"The model has {outputs} outputs, so labels must be in 0 ... {outputs - 1}, but the "
            f"{kind} labels range from {low} to {high}.",
        )


SAMPLE = 2**26  # bytes of an array that are read


def data_checksum(task: Task) -> str:
    """A checksum of the examples, clients and test examples.

    Of arrays over 64 MB, only evenly spaced rows are read, so a change of a few rows may be missed.
    """
    data, total = task.data, hashlib.sha256()
    arrays = [data.x, data.y, data.offsets]
    if isinstance(task.evaluate, Evaluation):
        arrays += [task.evaluate.x.cpu().numpy(), task.evaluate.y.cpu().numpy()]
    for array in arrays:
        add_array(total, array)
    return total.hexdigest()[:16]


def add_array(total: Any, array: Array) -> None:
    """Add an array, or evenly spaced rows of a large one, to a checksum."""
    rows = len(array) * SAMPLE // max(SAMPLE, array.nbytes)
    places = np.linspace(0, len(array) - 1, rows).astype(np.int64)
    sample = array if rows == len(array) else array[places]
    total.update(f"{array.dtype} {array.shape}".encode())
    total.update(np.ascontiguousarray(sample).tobytes())
