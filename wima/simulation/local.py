"""A client's visit: its problem, its mini-batches, and SGD on it; every fast engine runs this code.

Its plain twin is in `reference.py`; tests compare the two bit for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wima.algorithms.base import Local, State, Visit
from wima.core.errors import RunError, UsageError
from wima.core.randomness import rng
from wima.core.vector import Vector, vectors
from wima.data.federated import FederatedData, as_tensor, read_rows
from wima.simulation.options import LocalSGD
from wima.simulation.task import Task
from wima.simulation.workspace import Batch

# The client's visit as algorithms see it, and the rest of the vector (BatchNorm's statistics) where
# its training ended; empty for most models.
Solved: TypeAlias = tuple[Visit, Vector]


class Problem(NamedTuple):
    """A local problem with its address; without `local`, only the full gradient is computed."""

    t: int
    client: int
    lr: float
    w: Vector  # the global model, with its rest
    local: Local | None
    full_gradient: bool = False
    path_gradient: bool = False
    share: float = 1.0  # of its steps, which the client finishes
    memory: State = ()  # what the client remembers, for `client_finish`; not sent to workers

    def solved(self, steps: int = 0, **vectors: Any) -> Solved:
        """Its visit, from the vectors of `results`; without training, it ends at w."""
        visit = Visit(
            start=self.w if self.local is None else self.local.start,
            end=vectors.get("end", self.w),
            steps=steps,
            lr=self.lr,
            t=self.t,
            gradient=vectors.get("gradient"),
            path_gradient=vectors.get("path_gradient"),
        )
        return visit, self.w[:0] if (rest := vectors.get("rest")) is None else rest

    def message(self) -> tuple[dict[str, Any], dict[str, Vector]]:
        """JSON and, by name, the vectors other than w: for a process that has w."""
        fields, vectors = self._asdict(), {}
        del fields["w"], fields["memory"]
        if self.local is not None:
            start, scale, prox, shift, anchored = self.local
            local = {"scale": float(scale), "prox": float(prox), "anchored": bool(anchored)}
            if start.data_ptr() != self.w.data_ptr():
                vectors["start"] = start
            if isinstance(shift, Tensor):
                vectors["shift"] = shift
            else:
                local["shift"] = float(shift)
            fields["local"] = local
        return {**fields, "vectors": list(vectors)}, vectors

    @classmethod
    def of(
        cls, message: dict[str, Any], w: Vector, trained: int | None, vectors: dict[str, Vector]
    ) -> Self:
        """The inverse of `message`."""
        fields = {name: value for name, value in message.items() if name in cls._fields}
        if fields["local"] is not None:
            fields["local"] = Local(**{"start": w[:trained], **fields["local"], **vectors})
        return cls(w=w, **fields)

    def results(self, visit: Visit, rest: Vector) -> dict[str, Vector]:
        """The vectors to send back, by name: those from which `solved` makes the visit."""
        vectors = {"gradient": visit.gradient, "path_gradient": visit.path_gradient}
        if self.local is not None:
            vectors |= {"end": visit.end, "rest": rest}
        return {name: v for name, v in vectors.items() if v is not None and len(v)}


def batches(
    data: FederatedData, client: int, sgd: LocalSGD, seed: int, t: int, share: float = 1.0
) -> Iterator[Batch]:
    """The mini-batches of a client's visit in round t, or the first share of them."""
    x, y = tensors(data, client)
    plan = sgd.plan(len(x), rng("batches", seed, t, client))
    plan = plan[: shortened(len(plan), share)]
    # Gathered once, and by torch: it aligns memory in the same way in every process, which keeps
    # the bits equal.
    chosen = torch.from_numpy(np.concatenate(plan))
    sizes = [len(index) for index in plan]
    pairs = zip(torch.split(x[chosen], sizes), torch.split(y[chosen], sizes), strict=True)
    for k, (x_k, y_k) in enumerate(pairs):
        yield Batch(x_k, y_k, (seed, t, client, k))


def everything(
    data: FederatedData, client: int, seed: int, t: int, size: int = 512
) -> Iterator[Batch]:
    """All of a client's examples once, in order, in pieces that fit into memory."""
    x, y = tensors(data, client)
    for k, start in enumerate(range(0, len(x), size)):
        piece = slice(start, start + size)
        yield Batch(x[piece].clone(), y[piece].clone(), (seed, t, client, 2**31 + k))


def tensors(data: FederatedData, client: int) -> tuple[Tensor, Tensor]:
    """A client's arrays as torch tensors, without a copy if they are in memory."""
    x, y = (read_rows(rows) for rows in data.client(client))
    return as_tensor(x), as_tensor(y)


def shortened(steps: int, share: float) -> int:
    """How many of its steps a client takes."""
    return max(1, ceil(share * steps)) if share < 1 else steps


class Solver:
    """Solves local problems in this process, one after another."""

    def __init__(self, task: Task, sgd: LocalSGD, seed: int) -> None:
        self.task, self.sgd, self.seed = task, sgd, seed

    def solve(self, problem: Problem) -> Solved:
        """Run the client's visit."""
        gradient = None
        if problem.full_gradient:
            gradient = full_gradient(self.task, self.sgd, self.seed, problem)
        if problem.local is None:
            return problem.solved(gradient=gradient)
        path = torch.zeros_like(problem.local.start) if problem.path_gradient else None
        w_full, steps = self._descend(problem, problem.local, path)
        trained = len(problem.local.start)
        return problem.solved(
            steps,
            end=w_full[:trained],
            rest=w_full[trained:],
            gradient=gradient,
            path_gradient=None if path is None else path / steps,
        )

    def _descend(self, problem: Problem, local: Local, path: Vector | None) -> tuple[Vector, int]:
        """SGD on the local problem, in place; `path` accumulates the mini-batch gradients."""
        trained = len(local.start)
        space = None if local.anchored else self.task.workspace
        w_full = torch.empty_like(problem.w) if space is None else space.w
        w_full[:trained], w_full[trained:] = local.start, problem.w[trained:]
        y, velocity, k = w_full[:trained], torch.zeros((), device=problem.w.device), 0
        plain = space is not None and path is None and self._is_plain(local)
        for batch in batches(
            self.task.data, problem.client, self.sgd, self.seed, problem.t, problem.share
        ):
            k += 1
            if space is None:
                g = self._gradient(w_full, local, batch)
            elif plain:
                space.descend(batch, problem.lr, self.sgd.weight_decay)
                continue
            else:
                g = space.gradient(batch)
                if self.sgd.weight_decay:
                    g.add_(y, alpha=self.sgd.weight_decay)
            if path is not None:
                path.add_(g)
            g = self._correct(g, y, local)
            if self.sgd.momentum:
                velocity = g = self.sgd.momentum * velocity + g
            y.sub_(g, alpha=problem.lr)
        return w_full.clone(), k

    def _is_plain(self, local: Local) -> bool:
        """Whether the problem is FedAvg's: SGD on f_i alone."""
        shifted = isinstance(local.shift, torch.Tensor) or local.shift != 0
        corrected = local.scale != 1 or local.prox != 0 or shifted
        return not corrected and self.sgd.clip is None and not self.sgd.momentum

    def _gradient(self, w_full: Vector, local: Local, batch: Batch) -> Vector:
        """The mini-batch gradient; if anchored, minus the one at `start` on the same batch."""
        trained, decay = len(local.start), self.sgd.weight_decay
        g = self.task.gradient(w_full, batch)
        g = torch.add(g, w_full[:trained], alpha=decay) if decay else g.clone()
        if local.anchored:
            anchor = torch.cat([local.start, w_full[trained:]])
            at_start = self.task.gradient(anchor, batch)
            if decay:
                at_start = torch.add(at_start, local.start, alpha=decay)
            g = g - at_start
        return g

    def _correct(self, g: Vector, y: Vector, local: Local) -> Vector:
        """scale * g + prox * (y - start) + shift, clipped; terms that are 0 are skipped."""
        if local.scale != 1:
            g.mul_(local.scale)
        if local.prox:
            g.add_(y - local.start, alpha=local.prox)
        if isinstance(local.shift, torch.Tensor) or local.shift:
            g.add_(local.shift)
        if self.sgd.clip is not None:
            g.mul_(min(1.0, self.sgd.clip / max(float(g.norm()), 1e-30)))
        return g


def full_gradient(task: Task, sgd: LocalSGD, seed: int, problem: Problem) -> Vector:
    """The gradient at w of a client's mean loss over all its examples, weight decay included."""
    n = task.data.size(problem.client)
    total = torch.zeros_like(problem.w[: task.trained])
    for batch in everything(task.data, problem.client, seed, problem.t):
        total.add_(task.gradient(problem.w.clone(), batch), alpha=len(batch.x))
    return torch.add(total / n, problem.w[: task.trained], alpha=sgd.weight_decay)


@contextmanager
def located(t: int, hook: str, client: int | None = None) -> Iterator[None]:
    """Prefix errors with the round, client and hook in which they happened."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        where = f"round {t}" + ("" if client is None else f", client {client}") + f", {hook}"
        raise RunError(f"{where}: {type(error).__name__}: {error}") from error


@contextmanager
def untouched(*arguments: Any) -> Iterator[None]:
    """Raise if a tensor among the arguments is written to inside the block."""
    # torch has no read-only tensors; it counts in-place writes instead.
    before = [(tensor, tensor._version) for tensor in vectors(arguments)]
    yield
    for tensor, version in before:
        if tensor._version != version:
            raise UsageError(
                "the hook changed one of its arguments in place; hooks must return new vectors "
                "(write `c = c + d`, not `c += d`)."
            )
