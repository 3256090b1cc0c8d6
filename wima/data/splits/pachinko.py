"""Pachinko allocation: clients with a few related classes each, as in TFF's federated CIFAR-100."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wima.core.errors import check
from wima.core.randomness import rng
from wima.data.splits.labels import Floats, Ids

Mask: TypeAlias = npt.NDArray[np.bool_]


def pachinko(
    labels: npt.ArrayLike,
    groups: npt.ArrayLike,
    num_clients: int = 500,
    seed: int = 0,
    *,
    coarse: float = 0.1,
    fine: float = 10.0,
) -> Ids:
    """The client of each example: a two-level Dirichlet process over groups of classes.

    Each client draws a distribution over groups, Dir(coarse, ..., coarse), and over the classes of
    each group, Dir(fine, ..., fine); then, for each of its examples, a group, a class of the group,
    and an unused example of the class.  Exhausted classes are removed from all distributions, and
    so are groups of which all classes are exhausted.  All clients have n // num_clients examples;
    -1 marks the remaining ones.  (Li and McCallum 2006; Reddi et al. 2021, appendix.)
    """
    y, group_of_example = np.asarray(labels), np.asarray(groups)
    check(len(y) == len(group_of_example), f"{len(y)} labels but {len(group_of_example)} groups.")
    check(1 <= num_clients <= len(y), f"clients must be in 1 ... {len(y)}, got {num_clients}.")
    random = rng("split", seed)
    classes = int(y.max()) + 1
    group_of = np.zeros(classes, np.int64)
    group_of[y] = group_of_example
    stock = [list(random.permutation(np.flatnonzero(y == c))) for c in range(classes)]
    clients = np.full(len(y), -1, np.int64)
    for client in range(num_clients):
        for example in _client(random, group_of, stock, len(y) // num_clients, coarse, fine):
            clients[example] = client
    return clients


def _client(
    random: np.random.Generator,
    group_of: Ids,
    stock: list[list[int]],
    size: int,
    coarse: float,
    fine: float,
) -> list[int]:
    """The unused examples that one client draws."""
    groups = int(group_of.max()) + 1
    members = [np.flatnonzero(group_of == g) for g in range(groups)]
    p_group = random.dirichlet(np.full(groups, coarse))
    p_class = np.zeros(len(group_of))
    for m in members:
        p_class[m] = random.dirichlet(np.full(len(m), fine))
    taken: list[int] = []
    while len(taken) < size:
        p = _shares(p_group, p_class, members, np.array([bool(examples) for examples in stock]))
        # All draws at once, as long as the distribution stays the same.
        for c in random.choice(len(p), size - len(taken), p=p):
            taken.append(stock[c].pop())
            if not stock[c]:
                break
    return taken


def _shares(p_group: Floats, p_class: Floats, members: list[Ids], left: Mask) -> Floats:
    """The probability of each class; 0 for exhausted ones."""
    shares: Floats = np.zeros(len(p_class))
    of_group = _struck(p_group, np.array([left[m].any() for m in members]))
    for g, m in enumerate(members):
        if of_group[g]:
            shares[m] = of_group[g] * _struck(p_class[m], left[m])
    shares /= shares.sum()
    return shares


def _struck(p: Floats, left: Mask) -> Floats:
    """The probabilities restricted to what is left; uniform if all of them are 0."""
    shares: Floats = np.where(left, p, 0.0)
    if not shares.sum() > 0:
        shares = left.astype(np.float64)
    shares /= shares.sum()
    return shares
