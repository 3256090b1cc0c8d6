"""A round in plain code: the oracle for every other engine, and the one to debug with.

No shared memory, no in-place tricks.  Errors in hooks name the round, client and hook; hooks that
write to their arguments are reported in the same way.
"""

import torch

from wima.algorithms.base import Local, Visit
from wima.core.vector import Vector
from wima.simulation.local import Problem, batches, full_gradient, located, untouched
from wima.simulation.round import Engine, RoundState, RunningMean, check_shape


class Reference(Engine):
    """Runs rounds one client at a time, as the formulas read."""

    name = "reference"

    def round(self, state: RoundState, t: int, cohort: list[int], lr: float) -> RoundState:
        algorithm, data = self.setup.algorithm, self.setup.task.data
        w, rest = (
            state.w[: self.setup.task.trained],
            state.w[len(state.w[: self.setup.task.trained]) :],
        )
        server, training, full = state.server, cohort, None
        if algorithm.full_gradient == "cohort":  # phase A of MIME: the mean full gradient at w
            gradients, training = RunningMean(), []
            for i in cohort:
                with located(t, "full gradient", i):
                    gradient = self._full_gradient(state.w, t, i, lr)
                if self.setup.usable(gradient):
                    training.append(i)
                    gradients.add(gradient, self.setup.weight(i))
            full = gradients.value
        if full is not None:
            with located(t, "observe"), untouched(full, server):
                server = algorithm.observe(full, server)
        deltas, extras, rests, counted = RunningMean(), RunningMean(), RunningMean(), []
        fresh, private = RunningMean(), self.setup.private_sum(state)
        for i in training:
            weight = self.setup.weight(i)
            with located(t, "client_init", i), untouched(w):
                client = state.memory.read(i, w)
            with located(t, "local", i), untouched(w, server, client):
                local = algorithm.local(w, server, client)
            with located(t, "local training", i):
                visit, end_rest = self._visit(state.w, local, t, i, lr)
            if not self.setup.usable(visit, end_rest):
                continue
            with located(t, "client_finish", i), untouched(w, server, client, visit):
                extra, client = algorithm.client_finish(visit, server, client)
            if not self.setup.usable(visit.delta, rest - end_rest, extra, client):
                continue
            counted.append(i)
            state.memory.write(i, client)
            if private is not None:
                private.add(visit.delta)
                continue
            deltas.add(visit.delta, weight)
            shifted = isinstance(local.shift, torch.Tensor)
            old = local.shift * (lr * visit.steps) if shifted else torch.zeros_like(w)
            fresh.add(visit.delta - old if visit.gradient is None else visit.gradient, weight)
            rests.add(rest - end_rest, weight)
            if extra is not None:
                extras.add(extra, weight if algorithm.extra_mean == "weighted" else 1.0)
        delta, extra, moved = deltas.value, extras.value, rests.value
        excluded = tuple(i for i in cohort if i not in counted)
        clients, clip = len(counted), state.clip
        if private is not None:
            delta, clip = private.release(self.setup.seed, t)
            moved, clients = torch.zeros_like(rest), self.setup.cohort
        if delta is None or moved is None:
            return state._replace(excluded=excluded, client_gradient=None)
        fraction = clients / data.num_clients
        with located(t, "server_update"), untouched(w, server, delta, extra):
            gradient, server = algorithm.server_update(w, delta, extra, server, fraction)
            check_shape(gradient, w)
        step, opt = self.setup.server_opt.update(gradient, state.opt)
        w = torch.cat([w - step, rest - moved])
        own = delta if private is not None else fresh.value if full is None else full
        own = own if self.setup.wants_client_gradient else None
        return RoundState(w, server, opt, state.memory, excluded, own, clip)

    def _full_gradient(self, w: Vector, t: int, i: int, lr: float) -> Vector:
        problem = Problem(t, i, lr, w, None, full_gradient=True)
        return full_gradient(self.setup.task, self.setup.sgd, self.setup.seed, problem)

    def _visit(self, w: Vector, local: Local, t: int, i: int, lr: float) -> tuple[Visit, Vector]:
        """SGD on  scale * f_i(y) + prox/2 * |y - start|^2 + <shift, y>; also the final rest."""
        task, sgd, start = self.setup.task, self.setup.sgd, local.start
        own = self.setup.algorithm.full_gradient == "own"
        gradient = self._full_gradient(w, t, i, lr) if own else None
        y, rest, v, k = start, w[len(start) :], torch.zeros_like(start), 0
        path = torch.zeros_like(start)
        share = self.setup.faults.share(self.setup.seed, t, i)
        for batch in batches(task.data, i, sgd, self.setup.seed, t, share):
            whole = torch.cat([y, rest])
            g = torch.add(task.gradient(whole, batch), y, alpha=sgd.weight_decay)
            rest = whole[len(start) :]
            if local.anchored:
                at_start = task.gradient(torch.cat([start, rest]), batch)
                g = g - torch.add(at_start, start, alpha=sgd.weight_decay)
            path = path + g
            g = torch.add(local.scale * g, y - start, alpha=local.prox) + local.shift
            if sgd.clip is not None:
                g = g * min(1.0, sgd.clip / max(float(g.norm()), 1e-30))
            v = sgd.momentum * v + g
            y, k = torch.sub(y, v, alpha=lr), k + 1
        path_gradient = path / k if self.setup.algorithm.path_gradient else None
        return Visit(start, y, k, lr, t, gradient, path_gradient), rest
