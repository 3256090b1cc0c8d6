"""`check_algorithm` lets good citizens pass and tells the others what they did."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest
import torch

import wima
from wima.algorithms.base import Algorithm, Local
from wima.core.errors import RunError, UsageError

REFUSED = (UsageError, RunError)


def refuses(algorithm: object, *words: str) -> None:
    with pytest.raises(REFUSED) as caught:
        wima.check_algorithm(algorithm)
    assert [word for word in words if word not in str(caught.value)] == []


def test_fedavg_passes():
    wima.check_algorithm(wima.FedAvg())
    wima.check_algorithm(Algorithm())


class Remembers(Algorithm):
    """A good citizen that uses every hook and every kind of state."""

    full_gradient = "cohort"

    def init(self, w):
        return (torch.zeros_like(w), 0, 0.5)

    def client_init(self, w):
        return (torch.zeros_like(w),)

    def observe(self, gradient, server):
        return (0.5 * server[0] + gradient, server[1] + 1, server[2])

    def local(self, w, server, client):
        return Local(w, prox=0.1, shift=server[0] - client[0])

    def client_finish(self, visit, server, client):
        return visit.delta, (client[0] + 0.1 * visit.delta,)

    def server_update(self, w, delta, extra, server, fraction):
        return 0.5 * (delta + extra), server


def test_an_algorithm_with_vectors_and_numbers_in_tuples_passes():
    wima.check_algorithm(Remembers())


@pytest.mark.parametrize("thing", [wima.FedAvg, object(), "fedavg", None, wima.SGD()])
def test_what_is_no_instance_of_algorithm_is_refused(thing):
    refuses(thing, "Expected an instance of Algorithm", repr(thing))


class WritesInLocal(Algorithm):
    def local(self, w, server, client):
        w.add_(1)
        return Local(w)


class WritesInClientFinish(Algorithm):
    def client_finish(self, visit, server, client):
        visit.end.mul_(0.5)
        return None, client


class WritesInServerUpdate(Algorithm):
    def server_update(self, w, delta, extra, server, fraction):
        delta *= 0.5
        return delta, server


class WritesInObserve(Remembers):
    def observe(self, gradient, server):
        gradient.mul_(0.5)
        return super().observe(gradient, server)


class WritesInServed(Algorithm):
    def served(self, w, server):
        return w.mul_(0.5)


class WritesInInit(Remembers):
    def init(self, w):
        return (w.zero_(), 0, 0.5)


class WritesInClientInit(Remembers):
    def client_init(self, w):
        return (w.zero_(),)


WRITERS = {
    "local": WritesInLocal,
    "client_finish": WritesInClientFinish,
    "server_update": WritesInServerUpdate,
    "observe": WritesInObserve,
    "served": WritesInServed,
    "init": WritesInInit,
    "client_init": WritesInClientInit,
}


@pytest.mark.parametrize("hook", WRITERS)
def test_a_hook_that_writes_to_its_arguments_is_named(hook):
    refuses(WRITERS[hook](), hook, "changed one of its arguments in place")


class WritesServerState(Remembers):
    def server_update(self, w, delta, extra, server, fraction):
        server[0].add_(delta)
        return delta, server


class WritesClientState(Remembers):
    def client_finish(self, visit, server, client):
        client[0].add_(visit.delta)
        return visit.delta, client


def test_state_that_is_changed_in_place_is_refused():
    refuses(WritesServerState(), "server_update", "in place", "round 0")
    refuses(WritesClientState(), "client_finish", "in place", "client 0")


class ServerDict(Algorithm):
    def init(self, w):
        return {"c": torch.zeros_like(w)}


class ServerList(Algorithm):
    def init(self, w):
        return ([torch.zeros_like(w)],)


class ClientDict(Algorithm):
    def client_finish(self, visit, server, client):
        return None, {"h": visit.delta}


class ClientText(Algorithm):
    def client_finish(self, visit, server, client):
        return None, ("visited",)


@pytest.mark.parametrize(
    ("algorithm", "kind", "owner"),
    [
        (ServerDict(), "dict", "server"),
        (ServerList(), "list", "server"),
        (ClientDict(), "dict", "client"),
        (ClientText(), "str", "client"),
    ],
)
def test_state_of_anything_but_tuples_is_refused(algorithm, kind, owner):
    refuses(algorithm, type(algorithm).__name__, f"keeps a {kind} in its {owner}", "tuples")


class Graph(Algorithm):
    def init(self, w):
        return (torch.zeros_like(w).requires_grad_(),)


def test_state_that_requires_gradients_is_refused():
    refuses(Graph(), "Graph", "require gradients", "server")


class Random(Algorithm):
    def server_update(self, w, delta, extra, server, fraction):
        return delta + 1e-6 * torch.randn_like(delta), server


def test_an_algorithm_that_is_random_is_refused():
    refuses(Random(), "Random", "different results for one seed")


@dataclass(frozen=True, kw_only=True)
class Impatient(Algorithm):
    """Steps with the delta of each round's first client."""

    last: list[int] = field(default_factory=lambda: [-1])

    def client_finish(self, visit, server, client):
        first = self.last[0] != visit.t
        self.last[0] = visit.t
        return (visit.delta if first else 0 * visit.delta), client

    def server_update(self, w, delta, extra, server, fraction):
        return extra, server


def test_an_algorithm_that_depends_on_the_order_of_clients_is_refused():
    refuses(Impatient(), "Impatient", "order of the clients")


class ColumnGradient(Algorithm):
    def server_update(self, w, delta, extra, server, fraction):
        return delta.unsqueeze(1), server


class ColumnStart(Algorithm):
    def local(self, w, server, client):
        return Local(w.unsqueeze(1))


class NaNGradient(Algorithm):
    def server_update(self, w, delta, extra, server, fraction):
        return delta * float("nan"), server


class Tail(Algorithm):
    def served(self, w, server):
        return w[1:] * 2


@pytest.mark.parametrize(
    ("algorithm", "hook"),
    [(ColumnStart(), "local"), (Tail(), "served"), (ColumnGradient(), "server_update")],
)
def test_a_hook_that_returns_another_shape_is_named(algorithm, hook):
    refuses(algorithm, hook)


def test_a_model_that_is_not_finite_is_shown():
    refuses(NaNGradient(), "NaNGradient", "diverged on finite data", "norm of the model is nan")


class Raises(Algorithm):
    def local(self, w, server, client):
        raise ZeroDivisionError("no clients today")


def test_an_error_in_a_hook_tells_where_it_happened():
    refuses(Raises(), "round 0, client 0, local", "ZeroDivisionError: no clients today")


class Misspelt(wima.Algorithm):
    extra_mean = "weigthed"


class Shouting(wima.Algorithm):
    path_gradient = "yes"


@dataclass(frozen=True, kw_only=True)
class Annotated(wima.Algorithm):
    full_gradient: str = "own"


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            Misspelt(),
            "Misspelt has extra_mean = 'weigthed'; expected one of 'uniform', 'weighted'.",
        ),
        (Shouting(), "Shouting has path_gradient = 'yes'; expected one of False, True."),
        (Annotated(), "makes it a hyper-parameter; write `full_gradient = 'own'` instead."),
    ],
)
def test_class_attributes_have_known_values_and_no_type(algorithm, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        wima.check_algorithm(algorithm)
