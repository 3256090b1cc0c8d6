"""The pool that trains all clients of a round at once, as rows of one matrix.

Equal to the other engines up to rounding, which differs because products of matrices are summed in
another order.  Clients with more steps come first, so that each step works on the first rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wima.algorithms.base import Local
from wima.data.batches import everything
from wima.engine.base import Setup
from wima.engine.local import Problem, Solution
from wima.engine.rows import RowGradients, check_rows
from wima.errors import check
from wima.randomness import rng, torch_seed
from wima.vector import Vector


class Step(NamedTuple):
    """What the active clients see in one step: examples, and the address of random layers."""

    x: Tensor  # (clients, batch, ...)
    y: Tensor
    address: tuple[int, ...]


class Batched:
    """Solves the problems of a round together."""

    def __init__(self, setup: Setup, w: Vector) -> None:
        self._task, self._sgd, self._seed = setup.task, setup.sgd, setup.seed
        space = setup.task.workspace
        check(space is not None, "engine 'batched' needs a task of make_task; use 'serial'.")
        assert space is not None
        self._space, self._gradients = space, RowGradients(space)
        data = setup.task.data
        self._x, self._y = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self._offsets, self._sizes = data.offsets, data.sizes
        x, y = self._transformed(self._x[:1], (0,)), self._y[:1]
        check_rows(space, w, x, y)

    def close(self) -> None:
        """Nothing to let go."""

    def solve(self, problems: Iterable[Problem]) -> Iterator[tuple[Problem, Solution]]:
        listed = list(problems)
        full = [self._full(p) if p.full_gradient else None for p in listed]
        if not listed or listed[0].local is None:
            for problem, gradient in zip(listed, full, strict=True):
                yield problem, Solution(None, 0, gradient)
            return
        plans = [self._plan(p) for p in listed]
        order = sorted(range(len(listed)), key=lambda i: -len(plans[i]))
        ends, paths = self._descend([listed[i] for i in order], [plans[i] for i in order])
        place = {i: row for row, i in enumerate(order)}
        for i, problem in enumerate(listed):
            end, steps = torch.cat([ends[place[i]], self._rest(problem)]), len(plans[i])
            path = paths[place[i]] / steps if problem.path_gradient else None
            yield problem, Solution(end, steps, full[i], path)

    def _rest(self, problem: Problem) -> Vector:
        return problem.w[self._space.flat.layout.trained :]

    def _plan(self, problem: Problem) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Rows of the data that each step of the visit sees."""
        i, start = problem.client, int(self._offsets[problem.client])
        random = rng("batches", self._seed, problem.t, i)
        return [start + index for index in self._sgd.plan(int(self._sizes[i]), random)]

    def _descend(
        self, problems: list[Problem], plans: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]]
    ) -> tuple[Tensor, Tensor]:
        """SGD on all local problems; clients are sorted by their number of steps, most first."""
        rows = _Rows([p.local for p in problems if p.local is not None])
        rest, lr = self._rest(problems[0]), problems[0].lr
        y, velocity, paths = rows.start.clone(), torch.zeros(()), torch.zeros_like(rows.start)
        for k in range(len(plans[0])):
            active = sum(len(plan) > k for plan in plans)
            g = torch.empty_like(y[:active])
            for group in _same_size([plan[k] for plan in plans[:active]]):
                step = self._step(problems, plans, k, group)
                g[group] = self._gradient(y, rows, rest, step, group)
            if problems[0].path_gradient:
                paths[:active] += g
            g = self._correct(g, y[:active], rows, active)
            if self._sgd.momentum:
                velocity = g = self._sgd.momentum * velocity[:active] + g if k else g
            y[:active].sub_(g, alpha=lr)
        return y, paths

    def _step(
        self,
        problems: list[Problem],
        plans: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]],
        k: int,
        group: list[int],
    ) -> Step:
        """The k-th batches of some clients, stacked."""
        index = torch.from_numpy(np.stack([plans[i][k] for i in group]))
        x, y = self._x[index], self._y[index]
        if self._space.transform is not None:
            addresses = [(self._seed, problems[i].t, problems[i].client, k) for i in group]
            pairs = zip(x, addresses, strict=True)
            x = torch.stack([self._transformed(batch, address) for batch, address in pairs])
        return Step(x, y, (self._seed, problems[0].t, k, *group))

    def _transformed(self, x: Tensor, address: tuple[int, ...]) -> Tensor:
        transform = self._space.transform
        return x if transform is None else transform.train(x, address)

    def _gradient(
        self, y: Tensor, rows: _Rows, rest: Vector, step: Step, group: list[int]
    ) -> Tensor:
        """Mini-batch gradients of some rows, with weight decay; anchored: less those at start."""
        g = self._decayed(y[group], rest, step)
        if rows.anchored:
            g = g - self._decayed(rows.start[group], rest, step)
        return g

    def _decayed(self, w: Tensor, rest: Vector, step: Step) -> Tensor:
        if self._space.random:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed("layers", *step.address))
                g = self._gradients(w, rest, step.x, step.y)
        else:
            g = self._gradients(w, rest, step.x, step.y)
        decay = self._sgd.weight_decay
        return torch.add(g, w, alpha=decay) if decay else g

    def _correct(self, g: Tensor, y: Tensor, rows: _Rows, active: int) -> Tensor:
        """scale * g + prox * (y - start) + shift, clipped; adding what is 0 is left out."""
        if rows.scale is not None:
            g = rows.scale[:active] * g
        if rows.prox is not None:
            g = g + rows.prox[:active] * (y - rows.start[:active])
        if rows.shift is not None:
            g = g + rows.shift[:active]
        if self._sgd.clip is not None:
            norms = g.norm(dim=1, keepdim=True).clamp(min=1e-30)
            g = g * (self._sgd.clip / norms).clamp(max=1.0)
        return g

    def _full(self, problem: Problem) -> Vector:
        """A client's full gradient at w, weight decay included."""
        trained, n = self._space.flat.layout.trained, int(self._sizes[problem.client])
        w, total = problem.w[None, :trained], torch.zeros_like(problem.w[:trained])
        for batch in everything(self._task.data, problem.client, self._seed, problem.t):
            x = self._transformed(batch.x, batch.address)
            step = Step(x[None], batch.y[None], batch.address)
            total.add_(self._decayed(w, self._rest(problem), step)[0], alpha=len(batch.x))
        return total / n


class _Rows:
    """The local problems as matrices; what is the same as in FedAvg for all is None."""

    def __init__(self, local: list[Local]) -> None:
        self.start = torch.stack([p.start for p in local])
        self.anchored = local[0].anchored
        check(all(p.anchored == self.anchored for p in local), "clients differ in `anchored`.")
        self.scale = self._column([p.scale for p in local], 1.0)
        self.prox = self._column([p.prox for p in local], 0.0)
        shifts = [torch.as_tensor(p.shift, dtype=self.start.dtype) for p in local]
        some = any(shift.ndim or float(shift) for shift in shifts)
        self.shift = torch.stack([s.expand_as(self.start[0]) for s in shifts]) if some else None

    def _column(self, values: list[float], usual: float) -> Tensor | None:
        if all(value == usual for value in values):
            return None
        return torch.tensor(values, dtype=self.start.dtype)[:, None]


def _same_size(indices: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> list[list[int]]:
    """The positions of batches, grouped by their size."""
    groups: dict[int, list[int]] = {}
    for position, index in enumerate(indices):
        groups.setdefault(len(index), []).append(position)
    return list(groups.values())
