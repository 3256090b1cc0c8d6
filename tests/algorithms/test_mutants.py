"""Deliberate errors, most of them seen in public code: each is caught by a check that the right
code passes.

The check of a trajectory is the paper's pseudo-code, on the problem of
`helpers.least_squares`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Any, NamedTuple

import pytest
import torch

import wima
from tests.helpers import pseudocode
from tests.helpers.least_squares import DECAY, SETTINGS, SIZES, least_squares, models
from wima import SGD, Local, LocalSGD, Simulation
from wima.algorithms.adabest import LastMean
from wima.algorithms.fedacg import Motion
from wima.algorithms.feddyn import Dyn
from wima.algorithms.mime import Statistics
from wima.algorithms.scaffold import Control
from wima.simulation.local import Solver, batches
from wima.simulation.workspace import Batch

COHORTS = ([0, 1, 2], [1, 3], [2, 4, 5], [0, 1], [3, 4, 5], [0, 2])


# The checks.


@cache
def problem() -> pseudocode.Problem:
    """The run of `play` as the pseudo-codes see it."""
    task, names = least_squares(), ("batch_size", "epochs", "weight_decay")
    sgd = LocalSGD(**{name: SETTINGS[name] for name in names})
    visit = cache(lambda i, t: list(batches(task.data, i, sgd, 0, t)))

    def mean_gradient(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x @ w - y)[:, None] * x).mean(dim=0) + DECAY * w

    return pseudocode.Problem(
        w0=task.init(0),
        sizes=SIZES,
        cohorts=COHORTS,
        gradient=lambda y, i, t, k: mean_gradient(y, visit(i, t)[k].x, visit(i, t)[k].y),
        full_gradient=lambda w, i, t: mean_gradient(w, *map(torch.from_numpy, task.data.client(i))),
        steps=lambda i: ceil(sgd.epochs * SIZES[i] / sgd.batch_size),
        lr=lambda t: SETTINGS["lr"],
    )


def play(algorithm: Any = None, server_opt: Any = None, **more: Any) -> torch.Tensor:
    cohorts = {"cohorts": lambda seed, t: COHORTS[t], "engine": "serial"}
    return models(algorithm, server_opt=server_opt, **cohorts, **more)


def assert_is_the_paper(naive: partial, algorithm: Any, server_opt: Any = None) -> None:
    expected = torch.stack(naive(problem()))
    torch.testing.assert_close(play(algorithm, server_opt), expected, rtol=1e-9, atol=1e-9)


def assert_only_watches(averager: wima.Averager) -> None:
    torch.testing.assert_close(play(averagers={"average": averager}), play(), rtol=0, atol=0)


def assert_is_swa(averager: wima.Averager) -> None:
    settings = {**SETTINGS, "cohorts": lambda seed, t: COHORTS[t]}
    simulation = wima.simulate(least_squares(), averagers={"swa": averager}, **settings)
    served = torch.stack([simulation.vectors()["swa"].clone() for _ in simulation])
    plain = pseudocode.fedavg(problem())
    expected = pseudocode.swa(plain, averager.start, averager.cycle)[averager.start :]
    torch.testing.assert_close(served[averager.start :], torch.stack(expected), rtol=0, atol=1e-9)


# The errors: wrong algorithms.


class ScaffoldByCohort(wima.Scaffold):  # c moves by 1/|S| instead of 1/M
    def server_update(self, w, delta, extra, server, fraction):
        return super().server_update(w, delta, extra, server, 1.0)


class ScaffoldAliased(wima.Scaffold):  # c_i is overwritten before the difference is taken
    def client_finish(self, visit, server, client):
        _, client = super().client_finish(visit, server, client)
        return client.c - client.c, client


class ScaffoldFromTheModel(wima.Scaffold):  # c_i starts as a copy of the model
    def client_init(self, w):
        return Control(w.clone())


class FedDynFlipped(wima.FedDyn):  # the sign of h
    def server_update(self, w, delta, extra, server, fraction):
        h = server.h - self.alpha * fraction * extra
        return delta + h / self.alpha, Dyn(h, w - delta)


class MimeScaled(wima.Mime):  # the paper's (1 - beta), at the rate of FedJAX's form
    def server_update(self, w, delta, extra, server, fraction):
        m = (1 - self.momentum) * server.c + self.momentum * server.m
        return delta, Statistics(m, server.c)


class MimeThawed(wima.Mime):  # the momentum already has this round's gradient
    def observe(self, gradient, server):
        return Statistics(gradient + self.momentum * server.m, gradient)

    def server_update(self, w, delta, extra, server, fraction):
        return delta, server


class MimeLiteOfPseudoGradients(wima.MimeLite):  # momentum of deltas instead of gradients at w
    def server_update(self, w, delta, extra, server, fraction):
        return super().server_update(w, delta, delta, server, fraction)


class FedACGFromW(wima.FedACG):  # delta is measured from w, so lam * m counts twice
    def server_update(self, w, delta, extra, server, fraction):
        m = self.lam * server.m - (delta - self.lam * server.m)
        return -m, Motion(m)


class FedCMSwapped(wima.FedCM):  # alpha weighs the momentum
    def local(self, w, server, client):
        return Local(w, scale=1 - self.alpha, shift=self.alpha * server.D)


class FedProxHalved(wima.FedProx):  # mu/2 (y - w), as if from mu/4 |y - w|^2
    def local(self, w, server, client):
        return Local(w, prox=self.mu / 2)


class AdaBestStuck(wima.AdaBest):  # the divisor grows for ever
    def client_finish(self, visit, server, client):
        extra, bias = super().client_finish(visit, server, client)
        return extra, bias._replace(last=0)


class AdaBestOfCloud(wima.AdaBest):  # extrapolates from the cloud model
    def server_update(self, w, delta, extra, server, fraction):
        step, _ = super().server_update(w, delta, extra, server, fraction)
        return step, LastMean(w - step)


@dataclass(frozen=True, kw_only=True)
class Dampened(SGD):  # v <- beta v + (1 - beta) delta
    def update(self, gradient, state):
        return super().update((1 - self.momentum) * gradient, state)


class SWAKeepsFirst(wima.SWA):  # the copy of round `start` counts as a collected model
    def update(self, state, w, past):
        n = state.collected
        new = super().update(state._replace(collected=n + 1), w, past)
        return new._replace(collected=new.collected - 1)


# The errors: wrong engines.


def two_batches(patch: pytest.MonkeyPatch) -> None:
    """MIME's two gradients see different examples."""
    right = Solver._gradient

    def wrong(self: Solver, whole: torch.Tensor, local: Local, batch: Batch) -> torch.Tensor:
        both = right(self, whole, local, batch)
        plain = local._replace(anchored=False)
        other = Batch(batch.x[:1], batch.y[:1], batch.address)
        at_start = right(self, local.start, plain, batch) - right(self, local.start, plain, other)
        return both + at_start if local.anchored else both

    patch.setattr(Solver, "_gradient", wrong)


def fed_back(patch: pytest.MonkeyPatch) -> None:
    """Clients train from the average."""
    right = Simulation._round

    def wrong(self: Simulation) -> wima.Record:
        record = right(self)
        for average in [v for name, v in self.vectors().items() if name != "plain"]:
            self.state = self.state._replace(w=average)
        return record

    patch.setattr(Simulation, "_round", wrong)


# Each with the check that catches it.


class Case(NamedTuple):
    check: Callable[..., None]
    right: Any
    wrong: Any = None  # the same with an error; None if the error is a patch
    patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None


def paper(name: str, *, server_opt: Any = None, **hyper: Any) -> Callable[[Any], None]:
    naive = partial(getattr(pseudocode, name), **hyper)
    return lambda algorithm: assert_is_the_paper(naive, algorithm, server_opt)


def fedavgm(server_opt: SGD) -> None:
    assert_is_the_paper(partial(pseudocode.fedavgm, beta=0.9, server_lr=0.3), None, server_opt)


scaffold = paper("scaffold")
tenth = {"server_lr": 0.1, "server_opt": SGD(lr=0.1)}
mime, mimelite = paper("mime", beta=0.9, **tenth), paper("mimelite", beta=0.9, **tenth)
adabest, best = paper("adabest", mu=0.5, beta=0.6), {"mu": 0.5, "beta": 0.6}
acg, swa = {"lam": 0.8, "beta": 0.3}, {"start": 1, "cycle": 2}
CASES = {
    "scaffold-by-cohort": Case(scaffold, wima.Scaffold(), ScaffoldByCohort()),
    "scaffold-aliased": Case(scaffold, wima.Scaffold(), ScaffoldAliased()),
    "scaffold-from-the-model": Case(scaffold, wima.Scaffold(), ScaffoldFromTheModel()),
    "feddyn-flipped": Case(
        paper("feddyn", alpha=0.1), wima.FedDyn(alpha=0.1), FedDynFlipped(alpha=0.1)
    ),
    "mime-scaled": Case(mime, wima.Mime(), MimeScaled()),
    "mime-thawed": Case(mime, wima.Mime(), MimeThawed()),
    "mime-two-batches": Case(mime, wima.Mime(), patch=two_batches),
    "mimelite-of-pseudo-gradients": Case(mimelite, wima.MimeLite(), MimeLiteOfPseudoGradients()),
    "fedacg-from-w": Case(paper("fedacg", **acg), wima.FedACG(**acg), FedACGFromW(**acg)),
    "fedcm-swapped": Case(
        paper("fedcm", alpha=0.3), wima.FedCM(alpha=0.3), FedCMSwapped(alpha=0.3)
    ),
    "fedprox-halved": Case(paper("fedprox", mu=0.4), wima.FedProx(mu=0.4), FedProxHalved(mu=0.4)),
    "adabest-stuck": Case(adabest, wima.AdaBest(**best), AdaBestStuck(**best)),
    "adabest-of-cloud": Case(adabest, wima.AdaBest(**best), AdaBestOfCloud(**best)),
    "fedavgm-dampened": Case(fedavgm, SGD(lr=0.3, momentum=0.9), Dampened(lr=0.3, momentum=0.9)),
    "swa-keeps-first": Case(assert_is_swa, wima.SWA(**swa), SWAKeepsFirst(**swa)),
    "wima-fed-back": Case(assert_only_watches, wima.WIMA(3), patch=fed_back),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def assert_caught(check: Callable[[], None]) -> None:
    """The check fails, and because of the numbers."""
    with pytest.raises(AssertionError, match=r"are not (close|equal)"):
        check()


@every_case
def test_the_right_code_passes_the_check(case):
    case.check(case.right)


@every_case
def test_the_error_is_caught_by_the_same_check(case, monkeypatch):
    case.patch(monkeypatch)
    assert_caught(lambda: case.check(case.right if case.wrong is None else case.wrong))
